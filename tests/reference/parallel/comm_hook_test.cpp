// Tests of the communication hooks of DDP (float16, bfloat16, PowerSGD), of static graphs and of unused parameters.
// They run on simulated ranks and on Gloo and compare the gradients with values worked out by hand, the bits of the
// two backends with each other, and the bytes sent with the formulas.
#include "reference/parallel/comm_hook.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <span>

#include "properties/gen/ddp_training.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

DistributedDataParallelKwargs with_hook(const std::string& hook, const std::string& wrapper = "no") {
  return {.comm_hook = hook, .comm_wrapper = wrapper, .comm_state_option = {.start_powerSGD_iter = 2}};
}

// The gradients of one step of a layer. On rank r each of them is 1 + r * 2^-12, which float16 and bfloat16 round
// to 1.
at::Tensor gradient_of(RankContext& rank, const DistributedDataParallelKwargs& kwargs) {
  Accelerator accelerator({.ddp_kwargs = kwargs}, rank);
  nn::Linear net(nn::LinearOptions(4, 1).bias(false));
  auto model = accelerator.prepare(net);
  accelerator.backward(model(at::full({1, 4}, 1 + std::ldexp(rank.rank, -12))).sum());
  return net->weight.grad().clone();
}

class CommHookTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, CommHookTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// The mean of 1 and 1 + 2^-12 is 1 + 2^-13, unless it was rounded on the way.
TEST_P(CommHookTest, GradientsAreRoundedToWhatTheHookSends) {
  const auto gradient = [&](const DistributedDataParallelKwargs& kwargs) {
    return collect_ranks(GetParam(), 2,
                         [&](RankContext& rank) { return gradient_of(rank, kwargs)[0][0].item<double>(); })
        .front();
  };
  EXPECT_EQ(gradient(with_hook("no")), 1 + std::ldexp(1, -13));
  EXPECT_EQ(gradient(with_hook("fp16")), 1) << "2^-12 is below half of what float16 tells from 1";
  EXPECT_EQ(gradient(with_hook("bf16")), 1);
}

// Whether numbers near the limits of a format survive shows which of the two formats was used, and whether the hook
// divides before it sums: 65504 is the largest float16, so a sum of two of them would be infinite.
TEST_P(CommHookTest, HalvesAreDividedBeforeTheyAreSummed) {
  const auto mean_of = [&](const std::string& hook, double gradient) {
    return collect_ranks(GetParam(), 2,
                         [&](RankContext& rank) {
                           Accelerator accelerator({.ddp_kwargs = with_hook(hook)}, rank);
                           nn::Linear net(nn::LinearOptions(4, 1).bias(false));
                           auto model = accelerator.prepare(net);
                           accelerator.backward(model(at::full({1, 4}, gradient)).sum());
                           return net->weight.grad()[0][0].item<double>();
                         })
        .front();
  };
  EXPECT_EQ(mean_of("fp16", 65504), 65504) << "the sum is over float16's largest number";
  EXPECT_EQ(mean_of("fp16", 1 + std::ldexp(1, -9)), 1 + std::ldexp(1, -9));
  EXPECT_EQ(mean_of("bf16", 1 + std::ldexp(1, -9)), 1) << "bfloat16 has fewer digits";
  EXPECT_EQ(mean_of("bf16", std::ldexp(1, 20)), std::ldexp(1, 20)) << "and reaches further";
}

// PowerSGD is exact for a matrix of rank 1, so the result must be the mean, up to rounding.
TEST_P(CommHookTest, PowerSgdOfGradientsOfRankOneIsTheirMean) {
  const auto differences = collect_ranks(GetParam(), 3, [&](RankContext& rank) {
    auto kwargs = with_hook("power_sgd");
    kwargs.comm_state_option = {
        .start_powerSGD_iter = 0, .min_compression_rate = 1, .use_error_feedback = false, .warm_start = false};
    Accelerator accelerator({.ddp_kwargs = kwargs}, rank);
    nn::Linear net(nn::LinearOptions(8, 8).bias(false));
    net->to(at::kDouble);
    auto model = accelerator.prepare(net);
    const auto x = at::arange(1, 9, at::kDouble) * (rank.rank + 1), y = at::arange(8, 0, -1, at::kDouble);
    accelerator.backward(model(x).dot(y));
    const auto expected = at::outer(y, at::arange(1, 9, at::kDouble)) * 2;  // the mean of 1, 2 and 3
    return (net->weight.grad() - expected).abs().max().item<double>();
  });
  for (const auto difference : differences)
    EXPECT_LT(difference, 1e-12) << "P and Q of one column hold a matrix of rank 1";
}

// A rank that runs out of batches joins the others' collectives with zeros. With a hook, it has to send the hook's
// format, or the ranks would exchange buffers of different sizes.
TEST_P(CommHookTest, RanksWithoutBatchesJoinUnderEveryHook) {
  for (const auto* hook : {"no", "fp16", "bf16", "power_sgd", "batched_power_sgd"}) {
    const auto states = collect_ranks(GetParam(), 3, [&](RankContext& rank) {
      return train_ddp(rank, {.seed = 5, .steps = 6, .uneven = true, .kwargs = with_hook(hook)}).back().state_sha256;
    });
    EXPECT_EQ(states[0], states[1]) << hook;
    EXPECT_EQ(states[0], states[2]) << hook;
  }
}

// The final state of each rank after a training under this schedule.
std::vector<std::string> states_by_schedule(const DdpTrainingRequest& request, const sim::RankSchedule& schedule) {
  std::vector<std::string> states(3);
  sim::simulate({.num_ranks = 3, .schedule = schedule},
                [&](RankContext& rank) { states[rank.rank] = train_ddp(rank, request).back().state_sha256; });
  return states;
}

// It must not matter which rank completes a future. With a seeded schedule only one rank runs at a time, so a rank
// that waits outside of the simulator's view would block the test.
TEST(CommHookSchedulesTest, BitsDoNotDependOnWhoRunsWhen) {
  for (const auto* hook : {"no", "fp16", "power_sgd", "batched_power_sgd"}) {
    const DdpTrainingRequest request{.seed = 3, .steps = 4, .kwargs = with_hook(hook)};
    const auto parallel = states_by_schedule(request, {});
    for (const std::uint64_t seed : {1, 2})
      EXPECT_EQ(states_by_schedule(request, {.kind = sim::ScheduleKind::kRandom, .seed = seed}), parallel) << hook;
  }
  for (const auto* hook : {"no", "bf16"}) {
    DdpTrainingRequest request{.seed = 4, .steps = 3, .kwargs = with_hook(hook)};
    request.kwargs.static_graph = true;
    EXPECT_EQ(states_by_schedule(request, {.kind = sim::ScheduleKind::kRandom, .seed = 1}),
              states_by_schedule(request, {}))
        << hook << ", static graph";
  }
}

// Hooks run asynchronously in Gloo's threads; the order of their sums must not depend on it.
TEST(CommHookBackendsTest, SimulatedRanksAndGlooGiveTheSameBits) {
  for (const auto* hook : {"fp16", "bf16", "power_sgd", "batched_power_sgd"}) {
    const auto train = [&](RankContext& rank) {
      return train_ddp(rank, {.seed = 7, .steps = 5, .kwargs = with_hook(hook)}).back().state_sha256;
    };
    EXPECT_EQ(collect_ranks(Backend::kSim, 4, train), collect_ranks(Backend::kGlooThreads, 4, train)) << hook;
  }
}

// A static graph records the order of gradients in the first step, which must nevertheless communicate.
TEST(StaticGraphTest, GradientsOfTheFirstStepAreAveraged) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto gradients = collect_ranks(
        backend, 2, [&](RankContext& rank) { return gradient_of(rank, {.static_graph = true})[0][0].item<double>(); });
    EXPECT_EQ(gradients[0], 1 + std::ldexp(1, -13)) << name_of(backend);
    EXPECT_EQ(gradients[1], 1 + std::ldexp(1, -13)) << name_of(backend);
  }
}

// The hooks of a static graph also run in a backward pass that does not synchronise. Later passes would then
// communicate nothing and the ranks would drift apart, so such a pass is an error.
TEST(StaticGraphTest, APassThatDoesNotSynchroniseIsAnError) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const bool sync_each_batch : {false, true}) {
      run_ranks(backend, 2, [&](RankContext& rank) {
        Accelerator accelerator({.gradient_accumulation_plugin =
                                     GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = sync_each_batch},
                                 .ddp_kwargs = {.static_graph = true}},
                                rank);
        torch::nn::Linear net(2, 1);
        auto model = accelerator.prepare(net);
        const auto micro_batch = [&] {
          auto window = accelerator.accumulate(model);
          accelerator.backward(model(at::ones({1, 2})).sum());
        };
        if (sync_each_batch) {
          for (int step = 0; step < 4; ++step) micro_batch();
        } else {
          EXPECT_THAT(message_of<StateError>(micro_batch), HasSubstr("static_graph"));
        }
        const c10::NoGradGuard no_grad;
        auto window = accelerator.no_sync(model);
        model(at::ones({1, 2}));  // no backward pass
      });
    }
  }
}

// Without find_unused_parameters DDP waits for a gradient that never comes.
TEST(FindUnusedParametersTest, AnOutputThatTheLossDoesNotUseDoesNotStopTraining) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 2, [&](RankContext& rank) {
      EXPECT_EQ(train_ddp(rank, {.steps = 3, .unused = "in_loss", .kwargs = {.find_unused_parameters = true}}).size(),
                4U);
    });
  }
}

std::int64_t bytes_of_step(const DistributedDataParallelKwargs& kwargs, int steps) {
  // Bytes are only counted when a network model is set. This one takes no time.
  const auto at_once = [](const sim::EngineGroup&, const Call&, std::span<const double> ready) {
    return std::vector<double>(ready.begin(), ready.end());
  };
  const auto report = sim::rehearse({.num_ranks = 2, .finish_times = at_once}, [&](RankContext& rank) {
    Accelerator accelerator({.ddp_kwargs = kwargs}, rank);
    nn::Linear net(nn::LinearOptions(48, 32));
    auto model = accelerator.prepare(net);
    for (int step = 0; step < steps; ++step) {
      net->zero_grad();
      accelerator.backward(model(at::randn({2, 48})).square().mean());
    }
  });
  EXPECT_EQ(report.error, nullptr);
  return report.volumes.at("all_reduce").bytes;
}

std::int64_t bytes_of_last_step(const DistributedDataParallelKwargs& kwargs) {
  return bytes_of_step(kwargs, 4) - bytes_of_step(kwargs, 3);
}

// Rounding is not enough: a hook that sends float32 after rounding would save nothing.
TEST(CommHookTrafficTest, HalvesHaveHalfOfTheBytes) {
  const auto plain = bytes_of_last_step(with_hook("no"));
  EXPECT_EQ(plain % (4 * (48 * 32 + 32)), 0) << "whole gradients";
  EXPECT_EQ(bytes_of_last_step(with_hook("fp16")) * 2, plain);
  EXPECT_EQ(bytes_of_last_step(with_hook("bf16")) * 2, plain);
}

// A 48 x 32 matrix is sent as factors of 48 x rank and 32 x rank; the bias of 32 is sent as is. At rank 10 the
// factors would not be small enough, and the matrix is sent as is too.
TEST(CommHookTrafficTest, PowerSgdSendsItsFactorsAndSmallTensorsUncompressed) {
  const auto per_number = bytes_of_last_step(with_hook("no")) / (48 * 32 + 32);
  auto kwargs = with_hook("power_sgd");
  for (const int rank : {1, 2, 4}) {
    kwargs.comm_state_option.matrix_approximation_rank = rank;
    EXPECT_EQ(bytes_of_last_step(kwargs), per_number * ((48 + 32) * rank + 32)) << rank;
  }
  kwargs.comm_state_option.matrix_approximation_rank = 10;  // (48 + 32) * 10 * 2 > 48 * 32
  EXPECT_EQ(bytes_of_last_step(kwargs), per_number * (48 * 32 + 32));
  kwargs.comm_state_option.matrix_approximation_rank = 1;
  kwargs.comm_hook = "batched_power_sgd";
  EXPECT_EQ(bytes_of_last_step(kwargs), per_number * 2 * 40) << "a square of 40 x 40 holds 1568 numbers";
  kwargs.comm_wrapper = "fp16";
  EXPECT_EQ(bytes_of_last_step(kwargs) * 2, per_number * 2 * 40);
}

// PowerSGD has options that depend on each other, so several can be wrong at once.
TEST(DdpKwargsTest, AllProblemsAreInOneMessage) {
  const DistributedDataParallelKwargs kwargs{
      .bucket_cap_mb = 0,
      .comm_hook = "power_sgd",
      .comm_wrapper = "fp8",
      .comm_state_option = {.matrix_approximation_rank = 0, .start_powerSGD_iter = 1, .random_seed = -1}};
  const auto problems = problems_of(kwargs);
  EXPECT_EQ(problems.size(), 5U);
  std::string message;
  try {
    static_cast<void>(make_comm_hook(kwargs, Group()));
  } catch (const ConfigError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("start_powerSGD_iter: expected 2 or more"));
  EXPECT_THAT(message, HasSubstr("comm_wrapper: expected 'no', 'fp16' or 'bf16', got 'fp8'"));
  EXPECT_THAT(problems_of({.comm_hook = "powersgd"}).front(), HasSubstr("got 'powersgd'"));
  EXPECT_THAT(problems_of({.comm_wrapper = "fp16"}).front(), HasSubstr("requires a comm_hook"));
  EXPECT_TRUE(
      problems_of({.comm_hook = "power_sgd",
                   .comm_state_option = {.start_powerSGD_iter = 0, .use_error_feedback = false, .warm_start = false}})
          .empty());
  EXPECT_TRUE(problems_of(DistributedDataParallelKwargs{}).empty());
}

}  // namespace
}  // namespace accel::testing
