// SparseAdam beyond what all optimizers share. Its values are compared in recorded_optimizers_test.cpp.
#include "reference/optim/optimizers/sparse_adam.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

using accel::testing::error_of;

// Adam's moments of a row change in every step, SparseAdam's only in steps with a gradient of the row.
TEST(SparseAdamTest, ChangesTheRowsOfTheGradientOnly) {
  const auto weight = torch::ones({4, 3}).requires_grad_();
  SparseAdam optimizer({weight}, {.lr = 0.5});
  const auto step_rows = [&](std::vector<std::int64_t> rows) {
    weight.mutable_grad().reset();
    torch::embedding(weight, at::tensor(rows, at::kLong), -1, false, /*sparse=*/true).sum().backward();
    optimizer.step();
  };
  step_rows({1, 1, 3});
  const auto after_one = weight.detach().clone();
  step_rows({0});
  EXPECT_TRUE(after_one[0].equal(torch::ones({3})) && after_one[2].equal(torch::ones({3})));
  EXPECT_TRUE(at::allclose(after_one[1], torch::full({3}, 0.5))) << "two lookups are one step";
  EXPECT_TRUE(at::allclose(after_one[3], torch::full({3}, 0.5)));
  EXPECT_FALSE(weight[0].equal(after_one[0]));
  EXPECT_TRUE(weight.slice(0, 1).equal(after_one.slice(0, 1)));
  EXPECT_EQ(optimizer.state_dict().at("state").at("0").at("step"), Value(2)) << "an int, as in Python";
}

TEST(SparseAdamTest, ParametersThatPythonRejectsAreErrors) {
  EXPECT_THROW(SparseAdam({torch::ones({2, 2}, at::kComplexFloat).requires_grad_()}), ArgumentError);
  EXPECT_THAT(error_of<ArgumentError>([] {
                SparseAdam({torch::ones({2, 2}).to_sparse().requires_grad_()});
              }),
              ::testing::HasSubstr("SparseAdam: a parameter is sparse; expected dense parameters"));
}

}  // namespace
}  // namespace accel::optim
