// Fused Adam and AdamW against LibTorch's own optimizers, step by step.
#include "reference/optim/optimizers/fused_adam.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

constexpr int kNumSteps = 10;

// Each step has about ten roundings of 2^-53 on values near 1, over 10 steps, and the two forms compute in
// different orders. 1e-13 leaves a margin of ten.
constexpr double kTolerance = 1e-13;

std::vector<at::Tensor> parameters(at::ScalarType dtype = at::kDouble) {
  const auto generator = make_generator(0);
  std::vector<at::Tensor> params;
  // One element, fewer than a vector register, and more with a remainder: the three paths of the kernels.
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1}, {3}, {5, 13}}) {
    params.push_back(at::randn(shape, generator, dtype).requires_grad_());
  }
  return params;
}

// Performs steps with gradients that do not depend on the parameters.
void run_steps(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params) {
  const auto generator = make_generator(1);
  for (int step = 0; step < kNumSteps; ++step) {
    for (const auto& param : params)
      param.mutable_grad() = at::randn(param.sizes(), generator, param.options().requires_grad(false));
    optimizer.step();
  }
}

// Both take the same gradients. The kernels round differently, hence "close".
template <typename Fused, typename Plain, typename Options>
void expect_close_to_plain(const Options& options) {
  const auto fused_params = parameters(), plain_params = parameters();
  Fused fused(fused_params, options);
  Plain plain(plain_params, options);
  run_steps(fused, fused_params);
  run_steps(plain, plain_params);
  for (std::size_t param = 0; param < fused_params.size(); ++param) {
    EXPECT_TRUE(at::allclose(fused_params[param], plain_params[param], /*rtol=*/kTolerance, /*atol=*/kTolerance))
        << "parameter " << param << ": " << (fused_params[param] - plain_params[param]).abs().max().item<double>();
    EXPECT_FALSE(at::allclose(fused_params[param], parameters()[param], 1e-3, 1e-3)) << "did not move";
  }
}

// LibTorch's optimizer is the reference: it is tested itself and matches Python's.
TEST(FusedAdamTest, AdamTakesLibTorchsSteps) {
  expect_close_to_plain<Adam, torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
}

// Adam and AdamW differ only in this, so confusing the two would go unnoticed without decay.
TEST(FusedAdamTest, AdamsWeightDecayIsAddedToTheGradient) {
  expect_close_to_plain<Adam, torch::optim::Adam>(torch::optim::AdamOptions(1e-2).weight_decay(0.3).betas({0.8, 0.95}));
}

TEST(FusedAdamTest, AdamWTakesLibTorchsSteps) {
  expect_close_to_plain<AdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).eps(1e-6));
}

TEST(FusedAdamTest, AdamWsWeightDecayShrinksTheParameter) {
  expect_close_to_plain<AdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.3));
}

// With a second beta of 0.5, the moment also falls, so that the maximum makes a difference.
TEST(FusedAdamTest, AmsgradKeepsTheLargestSecondMoment) {
  expect_close_to_plain<Adam, torch::optim::Adam>(torch::optim::AdamOptions(1e-2).betas({0.9, 0.5}).amsgrad(true));
  expect_close_to_plain<AdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).betas({0.9, 0.5}).amsgrad(true));
}

// Schedules change the rate in the group's options, so kernels must not cache it.
TEST(FusedAdamTest, ARateSetBetweenStepsIsUsed) {
  const auto fused_params = parameters(), plain_params = parameters();
  AdamW fused(fused_params, torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW plain(plain_params, torch::optim::AdamWOptions(1e-2));
  run_steps(fused, fused_params);
  run_steps(plain, plain_params);
  fused.param_groups()[0].options().set_lr(0.5);
  plain.param_groups()[0].options().set_lr(0.5);
  run_steps(fused, fused_params);
  run_steps(plain, plain_params);
  EXPECT_TRUE(at::allclose(fused_params[2], plain_params[2], /*rtol=*/10 * kTolerance, /*atol=*/10 * kTolerance));
}

// Weight decay must not move it either.
TEST(FusedAdamTest, AParameterWithoutAGradientIsUnchanged) {
  const auto params = parameters();
  AdamW optimizer(params, torch::optim::AdamWOptions(1e-2).weight_decay(0.3));
  params[0].mutable_grad() = at::ones_like(params[0]);
  optimizer.step();
  EXPECT_FALSE(params[0].equal(parameters()[0]));
  EXPECT_TRUE(params[1].equal(parameters()[1]));
}

TEST(FusedAdamTest, EachParameterCountsItsOwnSteps) {
  // Without decay the first step of Adam is lr * g / (|g| + eps), whatever g is, if it is the parameter's first
  // step.
  const auto params = parameters();
  Adam optimizer(params, torch::optim::AdamOptions(0.5).eps(0));
  params[0].mutable_grad() = at::ones_like(params[0]);
  for (int step = 0; step < 3; ++step) optimizer.step();
  params[1].mutable_grad() = at::full_like(params[1], -7);
  optimizer.step();
  EXPECT_TRUE(at::allclose(params[1], parameters()[1] + 0.5, /*rtol=*/0, /*atol=*/kTolerance));
}

// The caller has gradients switched off; the closure needs them.
TEST(FusedAdamTest, AClosuresLossIsReturnedAndItsGradientsAreUsed) {
  const auto weight = torch::full({1}, 3.0, at::kDouble).requires_grad_();
  Adam optimizer({weight}, torch::optim::AdamOptions(0.5).eps(0));
  const c10::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    auto value = (weight * weight).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<double>(), 9);
  EXPECT_NEAR(weight.item<double>(), 2.5, kTolerance);
}

// PyTorch checks the same; a NaN has to be rejected explicitly, as it passes every comparison.
TEST(FusedAdamTest, ImpossibleNumbersAreArgumentErrors) {
  EXPECT_THROW(Adam(parameters(), torch::optim::AdamOptions(-1)), ArgumentError);
  EXPECT_THROW(Adam(parameters(), torch::optim::AdamOptions(std::nan(""))), ArgumentError);
  EXPECT_THROW(AdamW(parameters(), torch::optim::AdamWOptions(1).eps(-1)), ArgumentError);
  EXPECT_THROW(AdamW(parameters(), torch::optim::AdamWOptions(1).weight_decay(-1)), ArgumentError);
  EXPECT_THROW(Adam(parameters(), torch::optim::AdamOptions(1).betas({1.0, 0.9})), ArgumentError);
  EXPECT_THROW(Adam(parameters(), torch::optim::AdamOptions(1).betas({0.9, -0.1})), ArgumentError);
}

// Kernels would read the values of a sparse gradient as if they were dense.
TEST(FusedAdamTest, ASparseGradientIsAnArgumentError) {
  const auto weight = torch::zeros({4, 2}).requires_grad_();
  Adam optimizer({weight});
  weight.mutable_grad() = torch::ones({4, 2}).to_sparse();
  EXPECT_THROW(optimizer.step(), ArgumentError);
}

}  // namespace
}  // namespace accel::optim
