// Gradient clipping, which must equal torch.nn.utils: norm, factor and treatment of absent gradients. Most values
// are chosen so that all squares and sums are exact.
#include "reference/optim/optimizers/clip.hpp"

#include <gmock/gmock.h>
#include <torch/nn/utils.h>

#include <limits>

#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

// A parameter with this gradient.
at::Tensor with_grad(const std::vector<double>& gradient) {
  auto parameter = torch::zeros({static_cast<std::int64_t>(gradient.size())}, at::kDouble).requires_grad_();
  parameter.mutable_grad() = torch::tensor(gradient, at::kDouble);
  return parameter;
}

TEST(ClipTest, TheNormIsThatOfAllGradientsTogether) {
  const std::vector<at::Tensor> parameters = {with_grad({3, 4}), with_grad({-12})};
  const auto norm = clip_grad_norm(parameters, /*max_norm=*/100);
  EXPECT_EQ(norm.item<double>(), 13);  // sqrt(5^2 + 12^2), where all squares are exact
  EXPECT_EQ(norm.dim(), 0);
}

// Multiplying by a factor of 1.0 would be harmless, but a factor just below 1 would change bits.
TEST(ClipTest, GradientsWithinTheNormKeepTheirBits) {
  const std::vector<at::Tensor> parameters = {with_grad({0.1, 0.2}), with_grad({0.3})};
  clip_grad_norm(parameters, /*max_norm=*/1);
  EXPECT_TRUE(parameters[0].grad().equal(torch::tensor({0.1, 0.2}, at::kDouble)));
  EXPECT_TRUE(parameters[1].grad().equal(torch::tensor({0.3}, at::kDouble)));
}

// Python's factor is (1 / (norm + 1e-6)) * max_norm, so the norm afterwards is slightly below max_norm.
TEST(ClipTest, LongerGradientsAreScaledByPythonsFactor) {
  const std::vector<at::Tensor> parameters = {with_grad({3, 4}), with_grad({-12})};
  clip_grad_norm(parameters, /*max_norm=*/3.5);
  const double factor = (1 / (13 + 1e-6)) * 3.5;
  EXPECT_TRUE(parameters[0].grad().equal(torch::tensor({3 * factor, 4 * factor}, at::kDouble)));
  EXPECT_TRUE(parameters[1].grad().equal(torch::tensor({-12 * factor}, at::kDouble)));
}

// For the usual types of norm, including infinity.
TEST(ClipTest, ClippingAgreesWithLibTorchs) {
  for (const double norm_type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const auto make = [] {
      const auto generator = make_generator(0);
      auto one = torch::zeros({4, 3}, at::kDouble).requires_grad_(),
           other = torch::zeros({5}, at::kDouble).requires_grad_();
      one.mutable_grad() = at::randn({4, 3}, generator, at::kDouble);
      other.mutable_grad() = at::randn({5}, generator, at::kDouble);
      return std::vector<at::Tensor>{one, other};
    };
    const auto ours = make(), theirs = make();
    const double norm = clip_grad_norm(ours, /*max_norm=*/0.5, norm_type).item<double>();
    // Two sums of 17 positive values in different orders: 17 roundings of 2^-53, so 1e-14 of the norm is enough.
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(theirs, /*max_norm=*/0.5, norm_type), 1e-14 * norm)
        << norm_type;
    for (int index = 0; index < 2; ++index) {
      EXPECT_TRUE(at::allclose(ours[index].grad(), theirs[index].grad(), /*rtol=*/1e-14, /*atol=*/0)) << norm_type;
    }
  }
}

// Frozen parameters have none; creating one would make the optimizer update them.
TEST(ClipTest, ParametersWithoutAGradientAreSkipped) {
  const std::vector<at::Tensor> parameters = {torch::zeros({2}).requires_grad_(), with_grad({3, 4})};
  EXPECT_EQ(clip_grad_norm(parameters, /*max_norm=*/100).item<double>(), 5);
  clip_grad_value(parameters, /*clip_value=*/1);
  EXPECT_FALSE(parameters[0].grad().defined());
}

// As in PyTorch; an empty list is no error.
TEST(ClipTest, WithoutAnyGradientTheNormIsZero) {
  EXPECT_EQ(clip_grad_norm({torch::zeros({2}).requires_grad_()}, /*max_norm=*/1).item<double>(), 0);
  EXPECT_EQ(clip_grad_norm({}, /*max_norm=*/1).item<double>(), 0);
  EXPECT_NO_THROW(clip_grad_value({}, /*clip_value=*/1));
}

TEST(ClipTest, ValuesAreClampedOnBothSides) {
  const auto parameter = with_grad({-3, -1, 0.5, 2});
  clip_grad_value({parameter}, /*clip_value=*/1);
  EXPECT_TRUE(parameter.grad().equal(torch::tensor({-1.0, -1.0, 0.5, 1.0}, at::kDouble)));
}

}  // namespace
}  // namespace accel::optim
