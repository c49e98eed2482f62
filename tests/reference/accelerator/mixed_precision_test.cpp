// fp16 with a loss scale on CPUs, which Accelerate supports on GPUs only. A model with one weight makes scale,
// gradient and update exact powers of two, so overflows can be provoked at will.
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model with one weight, whose gradient in a batch is the batch's number.
struct OneWeightImpl : nn::Module {
  OneWeightImpl() { weight = register_parameter("weight", torch::zeros({1})); }
  at::Tensor forward(const at::Tensor& gradient) { return (weight * gradient).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(OneWeight);

class MixedPrecisionTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, MixedPrecisionTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// As Accelerate: losses are computed in float32, so that sums over many outputs do not overflow.
TEST_P(MixedPrecisionTest, Fp16ComputesInHalfPrecisionAndReturnsFloat32) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16"}, rank);
    nn::Linear net(4, 2);
    auto model = accelerator.prepare(net);
    const auto out = model(at::randn({3, 4}));
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    EXPECT_TRUE(out.equal(out.to(at::kHalf).to(at::kFloat)));
    accelerator.backward(out.sum());
    EXPECT_EQ(net->weight.grad().scalar_type(), at::kFloat);
    const auto product = [] { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); };
    {
      const auto scope = accelerator.autocast();
      EXPECT_EQ(product(), at::kHalf);
      // A part in full precision inside, and the outer scope is in force again afterwards.
      const auto inner = accelerator.autocast({.enabled = false});
      EXPECT_EQ(product(), at::kFloat);
    }
    EXPECT_EQ(product(), at::kFloat);
  });
}

// Switched off, autocast must leave the model in float32.
TEST_P(MixedPrecisionTest, AutocastKwargsApplyToTheModel) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "bf16", .autocast_kwargs = {.enabled = false}}, rank);
    nn::Linear net(4, 2);
    auto model = accelerator.prepare(net);
    const auto input = at::randn({3, 4});
    EXPECT_TRUE(model(input).equal(net->forward(input)));
  });
}

// The sequence that Accelerate's own test_optimizer.py checks: a gradient of 0.01, NaN on one rank, NaN, and a good
// one.
// If only the rank with the overflow skipped its step, the replicas would diverge.
TEST_P(MixedPrecisionTest, AnOverflowOnOneRankSkipsTheStepOfAllAndTheirSchedules) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16"}, rank);
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    // On two ranks the schedule steps twice, by 1/16 each time.
    LambdaLR lambda(sgd, [](int epoch) { return 1.0 - epoch / 16.0; });
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, lambda);
    std::vector<bool> skipped;
    std::vector<double> rates, scales;
    std::vector<float> weights;
    for (int step = 0; step < 4; ++step) {
      const bool bad = step == 2 || (step == 1 && rank.rank == 1);
      accelerator.backward(model(at::full({1}, bad ? NAN : 0.5)));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      skipped.push_back(accelerator.optimizer_step_was_skipped());
      rates.push_back(optimizer.lr());
      scales.push_back(accelerator.scaler()->get_scale());
      weights.push_back(net->weight.item<float>());
    }
    EXPECT_THAT(skipped, ElementsAre(false, true, true, false));
    EXPECT_THAT(rates, ElementsAre(0.875, 0.875, 0.875, 0.75));
    // Each overflow halves the scale.
    EXPECT_THAT(scales, ElementsAre(65536, 32768, 16384, 16384));
    EXPECT_THAT(weights, ElementsAre(-0.5F, -0.5F, -0.5F, -0.5F - 0.875F * 0.5F));
  });
}

// Prepared before its optimizer, the schedule would be tied to none, and step on overflows.
TEST_P(MixedPrecisionTest, AScheduleNamedBeforeItsOptimizerFollowsIt) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16"}, rank);
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    LambdaLR lambda(sgd, [](int epoch) { return 1.0 - epoch / 16.0; });
    auto [scheduler, model, optimizer] = accelerator.prepare(lambda, net, sgd);
    std::vector<double> rates;
    for (const bool bad : {false, true}) {
      accelerator.backward(model(at::full({1}, bad ? NAN : 0.5)));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      rates.push_back(optimizer.lr());
    }
    EXPECT_THAT(rates, ElementsAre(0.875, 0.875));
  });
}

// The scale must be removed before clipping, or the effective limit would depend on the scale.
TEST_P(MixedPrecisionTest, ClippingClipsTheUnscaledGradientUnderAnyScale) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    // The same result for every scale; with an unscaled limit, each would differ.
    for (const double scale : {1.0, 8.0, 65536.0, 1048576.0}) {
      Accelerator accelerator(
          {.mixed_precision = "fp16", .gradient_accumulation_steps = 2, .grad_scaler_kwargs = {.init_scale = scale}},
          rank);
      OneWeight net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (const bool last : {false, true}) {
        auto window = accelerator.accumulate(model);
        accelerator.backward(model(at::full({1}, 4.0)));
        // Called in every micro-batch: before the last one it returns the norm so far and changes nothing.
        const auto norm = accelerator.clip_grad_norm_(model.parameters(), 1.0).item<double>();
        // Each micro-batch contributes 4 / 2, since two of them are averaged.
        EXPECT_EQ(norm, last ? 4 : 2);
        if (last) {
          EXPECT_NEAR(net->weight.grad().item<float>(), 1, 1e-5);
        }
        accelerator.clip_grad_value_(model.parameters(), 2.0);  // the gradients are already unscaled
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_NEAR(net->weight.item<float>(), -1, 1e-5) << "scale " << scale;
    }
  });
}

// Two models, each with its own optimizer. All steps of an iteration use one scale.
void step_in_turn(Backend backend, bool clips) {
  run_ranks(backend, 2, [=](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler_kwargs = {.init_scale = 4, .growth_interval = 1}},
                            rank);
    OneWeight first, second;
    torch::optim::SGD first_sgd(first->parameters(), 1.0), second_sgd(second->parameters(), 1.0);
    auto [first_model, second_model, first_optimizer, second_optimizer] =
        accelerator.prepare(first, second, first_sgd, second_sgd);
    const auto clip = [&](auto& model) {
      if (clips) {
        EXPECT_EQ(accelerator.clip_grad_norm_(model.parameters(), 2.0).template item<float>(), 1);
      }
    };
    for (int step = 1; step <= 3; ++step) {
      accelerator.backward(first_model(at::ones({1})));
      accelerator.backward(second_model(at::ones({1})));
      clip(first_model);
      first_optimizer.step();
      clip(second_model);
      second_optimizer.step();
      first_optimizer.zero_grad();
      second_optimizer.zero_grad();
      EXPECT_EQ(first->weight.item<float>(), -step);
      EXPECT_EQ(second->weight.item<float>(), -step);
      // The scale doubles once per iteration, not once per optimizer.
      EXPECT_EQ(accelerator.scaler()->get_scale(), 4 << step);
    }
  });
}

TEST_P(MixedPrecisionTest, OptimizersThatStepInTurnAreUnscaledByOneScale) { step_in_turn(GetParam(), /*clips=*/false); }
TEST_P(MixedPrecisionTest, OptimizersMayBeClippedAndStepInTurn) { step_in_turn(GetParam(), /*clips=*/true); }

// Unscaling twice would divide by the scale twice and train with vanishing gradients.
TEST_P(MixedPrecisionTest, UnscalingTwiceOrTooEarlyIsAStateError) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16", .gradient_accumulation_steps = 2}, rank);
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (const bool last : {false, true}) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(at::ones({1})));
      if (!last) {
        EXPECT_THAT(message_of<StateError>([&] { accelerator.unscale_gradients(); }),
                    HasSubstr("gradients are not synchronized in this micro-batch"));
        continue;
      }
      accelerator.unscale_gradients(optimizer);
      // Unscaled: the gradient of the program.
      EXPECT_EQ(net->weight.grad().item<float>(), 1);
      EXPECT_THAT(message_of<StateError>([&] { accelerator.unscale_gradients(); }), HasSubstr("since the last update"));
      accelerator.clip_grad_norm_(model.parameters(), 1.5);
      optimizer.step();
    }
    EXPECT_EQ(net->weight.item<float>(), -1);
  });
}

// The guard's limit is in units of true gradients, so it must look at unscaled ones.
TEST_P(MixedPrecisionTest, AGuardOfTheNormSeesUnscaledGradients) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16", .gradient_guard = {.skip_norm_above = 3.0}}, rank);
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<bool> skipped;
    for (const double gradient : {2.0, 4.0, 2.0}) {
      accelerator.backward(model(at::full({1}, gradient)));
      optimizer.step();
      optimizer.zero_grad();
      skipped.push_back(optimizer.step_was_skipped());
    }
    EXPECT_THAT(skipped, ElementsAre(false, true, false));
    EXPECT_EQ(net->weight.item<float>(), -4);
  });
}

// After clipping, no norm is above the limit, and the guard would never act.
TEST_P(MixedPrecisionTest, AGuardOfTheNormSeesGradientsBeforeTheyAreClipped) {
  for (const auto* precision : {"no", "fp16"}) {
    run_ranks(GetParam(), 2, [&](RankContext& rank) {
      Accelerator accelerator({.mixed_precision = precision, .gradient_guard = {.skip_norm_above = 3.0}}, rank);
      OneWeight net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto clip = [&](double gradient) {
        accelerator.backward(model(at::full({1}, gradient)));
        accelerator.clip_grad_norm_(model.parameters(), 1.0);
        accelerator.clip_grad_value_(model.parameters(), 0.5);
      };
      // A gradient that no step uses must not influence the guard.
      clip(16.0);  // dropped, because no step follows
      optimizer.zero_grad();
      std::vector<bool> skipped;
      for (const double gradient : {2.0, 4.0, 2.0}) {
        clip(gradient);
        optimizer.step();
        optimizer.zero_grad();
        skipped.push_back(optimizer.step_was_skipped());
      }
      EXPECT_THAT(skipped, ElementsAre(false, true, false)) << precision;
      EXPECT_EQ(net->weight.item<float>(), -1) << precision;
    });
  }
}

// Ranks with fewer batches make fewer steps and would otherwise grow the scale later than the others.
TEST_P(MixedPrecisionTest, RanksHaveOneScaleAfterUnevenInputs) {
  const auto scales = collect_ranks(GetParam(), 3, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler_kwargs = {.growth_interval = 1}}, rank);
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 0.01);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, sgd, DataLoader(TensorDataset(at::ones({7, 1})), {.batch_size = 1}));
    accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] {
      for (auto& [x] : loader) {
        accelerator.backward(model(x));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    return accelerator.scaler()->get_scale();
  });
  // Three steps on every rank: seven samples on three ranks.
  EXPECT_THAT(scales, ElementsAre(65536 * 8, 65536 * 8, 65536 * 8));
}

// Options of several structs are wrong at once, and none may hide the others.
TEST(MixedPrecisionOptionsTest, AllProblemsAreInOneMessage) {
  const auto rank = make_single_rank();
  const AcceleratorOptions bad{.mixed_precision = "fp4",
                               .grad_scaler_kwargs = {.growth_factor = 0.5},
                               .init_process_group_kwargs = {.backend = "mpi", .init_method = "tcp://x"},
                               .gradient_guard = {.skip_norm_above = -1.0},
                               .loss_weighting = "fair"};
  const auto message = message_of<ConfigError>([&] { Accelerator accelerator(bad, *rank); });
  for (const auto* word : {"fp4", "growth_factor", "backend", "init_method", "skip_norm_above", "loss_weighting"})
    EXPECT_THAT(message, HasSubstr(word));
}

}  // namespace
}  // namespace accel::testing
