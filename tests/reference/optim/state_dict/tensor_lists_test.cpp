// Tests of the lists that a step works on.
#include "reference/optim/state_dict/tensor_lists.hpp"

#include <gtest/gtest.h>

#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

TEST(TensorListsTest, EachListHasOneDtypeAndOneSetOfStates) {
  std::vector<at::Tensor> params;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat, at::kBFloat16, at::kFloat}) {
    params.push_back(at::ones({2}, dtype).requires_grad_());
    params.back().mutable_grad() = at::ones({2}, dtype);
  }
  const std::vector<StateEntry> entries{{.name = "late", .used = false}};
  ParamStates states;
  const auto made = gather_tensors(params, entries, states, {.optimizer = "Test"});
  ASSERT_EQ(made.size(), 3U);
  EXPECT_EQ(made[0].params.size(), 3U);
  EXPECT_EQ(made[1].dtype, at::kDouble);
  made[0].owners[1]->tensors[0] = at::ones({2});
  EXPECT_EQ(gather_tensors(params, entries, states, {.optimizer = "Test"}).size(), 4U)
      << "one of the three now has state that the others lack";
}

TEST(TensorListsTest, MatricesHaveFactorsAndVectorsHaveNone) {
  std::vector<at::Tensor> params;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {3}, {4, 3}, {2, 4, 3}}) {
    params.push_back(at::ones(shape).requires_grad_());
    params.back().mutable_grad() = at::ones(shape);
  }
  using Kind = StateEntry::Kind;
  const std::vector<StateEntry> entries{{.name = "row", .kind = Kind::kRowFactor},
                                        {.name = "column", .kind = Kind::kColumnFactor},
                                        {.name = "all", .kind = Kind::kUnfactored}};
  ParamStates states;
  auto made = gather_tensors(params, entries, states, {.optimizer = "Test"});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0]["all"].size(), 2U);
  EXPECT_EQ(made[0]["all"][1].sizes(), (at::IntArrayRef{3}));
  EXPECT_TRUE(made[0]["row"].empty() && made[0]["column"].empty() && made[1]["all"].empty());
  EXPECT_EQ(made[1]["row"][0].sizes(), (at::IntArrayRef{4, 1}));
  EXPECT_EQ(made[1]["column"][0].sizes(), (at::IntArrayRef{1, 3}));
  EXPECT_EQ(made[1]["row"][1].sizes(), (at::IntArrayRef{2, 4, 1}));
  EXPECT_EQ(made[1]["column"][1].sizes(), (at::IntArrayRef{2, 1, 3}));
}

}  // namespace
}  // namespace accel::optim
