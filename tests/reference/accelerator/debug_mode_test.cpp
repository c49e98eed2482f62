// Debug mode and other parts of the front end that are rarely used: triggers, process-group options and
// free_memory. Debug mode compares the shapes of all ranks before a collective, so it must cost nothing when it is
// off.
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DebugModeTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, DebugModeTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Every rank must throw: a rank that continues alone would hang in the next collective.
TEST_P(DebugModeTest, DifferentShapesAreReportedOnEveryRankWithTheOperation) {
  const auto messages = collect_ranks(GetParam(), 3, [](RankContext& rank) {
    Accelerator accelerator({.debug = true}, rank);
    auto tensor = at::ones({2, rank.rank == 1 ? 5 : 4});
    std::vector<std::string> messages;
    messages.push_back(message_of<DistributedOperationException>([&] { accelerator.gather(tensor); }));
    messages.push_back(message_of<DistributedOperationException>([&] { accelerator.reduce(tensor); }));
    messages.push_back(message_of<DistributedOperationException>([&] { accelerator.broadcast(tensor); }));
    messages.push_back(message_of<DistributedOperationException>([&] { accelerator.gather_for_metrics(tensor); }));
    EXPECT_EQ(accelerator.gather(at::ones({1})).size(0), 3) << "and the group is as it was";
    return messages;
  });
  for (const auto& of_rank : messages) {
    EXPECT_THAT(of_rank[0], AllOf(HasSubstr("gather: "), HasSubstr("rank 0: [2, 4]; rank 1: [2, 5]; rank 2: [2, 4]")));
    EXPECT_THAT(of_rank[1], HasSubstr("reduce: "));
    EXPECT_THAT(of_rank[2], HasSubstr("broadcast: "));
    EXPECT_THAT(of_rank[3], HasSubstr("gather_for_metrics: "));
    EXPECT_EQ(of_rank, messages.front());
  }
}

// Sizes may differ, since padding makes them equal. Without debug mode Gloo returns a tensor on one of the ranks.
TEST_P(DebugModeTest, PaddingTensorsWithOtherNumbersOfDimensionsIsReportedOnEveryRank) {
  const auto messages = collect_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({.debug = true}, rank);
    EXPECT_EQ(accelerator.pad_across_processes(at::ones({1 + rank.rank, 3})).size(0), 2);
    const auto tensor = rank.rank == 0 ? at::ones({2, 3}) : at::ones({2});
    return message_of<DistributedOperationException>([&] { accelerator.pad_across_processes(tensor); });
  });
  for (const auto& message : messages)
    EXPECT_THAT(message, HasSubstr("pad_across_processes: the tensors of the ranks do not match; expected equal "
                                   "numbers of dimensions, on cpu; rank 0: [2, 3]; rank 1: [2]"));
}

// Debug mode compares the shapes of every collective on all ranks. It is slow, so an argument must be able to
// switch it off.
TEST(DebugModeEnvironmentTest, TheVariableEnablesItAndTheArgumentPrecedes) {
  setenv("ACCELERATE_DEBUG_MODE", "yes", 1);
  const auto throws = [](AcceleratorOptions options) {
    return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      Accelerator accelerator(options, rank);
      return !message_of<DistributedOperationException>([&] {
                accelerator.broadcast(*std::make_unique<at::Tensor>(at::ones({1 + rank.rank})));
              }).empty();
    });
  };
  EXPECT_TRUE(throws({})[1]);
  EXPECT_ANY_THROW(throws({.debug = false}));  // the simulator's own diagnosis, a different error
  setenv("ACCELERATE_DEBUG_MODE", "perhaps", 1);
  const auto rank = make_single_rank();
  EXPECT_THAT(message_of<ConfigError>([&] { Accelerator accelerator({}, *rank); }), HasSubstr("ACCELERATE_DEBUG_MODE"));
  unsetenv("ACCELERATE_DEBUG_MODE");
}

// Additional collectives in the user's group would change sequence numbers in diagnoses and fault plans.
TEST(DebugModeTraffic, DebugModeAddsNoCollectiveToTheUsersGroup) {
  const auto events_of_world = [](bool debug) {
    const auto report =
        sim::rehearse({.num_ranks = 2, .schedule = {.kind = sim::ScheduleKind::kRoundRobin}, .logs_events = true},
                      [&](RankContext& rank) {
                        Accelerator accelerator({.debug = debug}, rank);
                        accelerator.gather(at::ones({2}));
                        accelerator.reduce(at::ones({2}));
                      });
    return std::count_if(report.events.begin(), report.events.end(), [](const std::string& event) {
      return event.find("\"world\"") != std::string::npos && event.find("\"arrive\"") != std::string::npos;
    });
  };
  EXPECT_EQ(events_of_world(false), 4);
  EXPECT_EQ(events_of_world(true), 4);
}

// check_trigger resets the flag, so an early stop does not repeat in the next epoch.
TEST(TriggerTest, ATriggerOfOneRankIsSeenByAllExactlyOnce) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      EXPECT_FALSE(accelerator.check_trigger());
      if (rank.rank == 1) accelerator.set_trigger();
      EXPECT_TRUE(accelerator.check_trigger());
      EXPECT_FALSE(accelerator.check_trigger());
    });
  }
}

// A program for GPUs asks for NCCL. On the simulator it must run unchanged.
TEST(InitProcessGroupKwargsTest, AnotherBackendIsAConfigErrorExceptInARehearsal) {
  const auto messages = [](Backend backend) {
    return collect_ranks(backend, 2, [](RankContext& rank) {
      return message_of<ConfigError>(
          [&] { Accelerator accelerator({.init_process_group_kwargs = {.backend = "nccl"}}, rank); });
    });
  };
  EXPECT_THAT(messages(Backend::kGlooThreads)[1], HasSubstr("started over gloo, not nccl"));
  EXPECT_EQ(messages(Backend::kSim)[1], "");
}

// Rank 1 never joins. Every later collective of the group fails with it.
TEST(InitProcessGroupKwargsTest, CollectivesEndAfterTheTimeout) {
  const auto run = [] {
    run_ranks(Backend::kGlooUnrecordedThreads, 2, [](RankContext& rank) {
      Accelerator accelerator({.init_process_group_kwargs = {.timeout = std::chrono::milliseconds(50)}}, rank);
      auto tensor = at::ones({1});
      if (rank.rank == 0) accelerator.reduce(tensor);
    });
  };
  EXPECT_THAT(message_of<Error>(run), HasSubstr("Timed out waiting 50ms"));
}

// A count of micro-batches from before would make the first step of the next training too early.
TEST(FreeMemoryTest, PreparedObjectsAreForgottenAndAccumulationRestarts) {
  const auto rank = make_single_rank();
  Accelerator accelerator({.gradient_accumulation_steps = 2}, *rank);
  torch::nn::Linear net(1, 1);
  auto model = accelerator.prepare(net);
  const auto micro_batch = [&] {
    auto window = accelerator.accumulate(model);
    return accelerator.sync_gradients();
  };
  EXPECT_FALSE(micro_batch());
  auto tensor = at::ones({3});
  accelerator.free_memory(tensor);
  EXPECT_FALSE(tensor.defined());
  EXPECT_FALSE(micro_batch());
  EXPECT_TRUE(micro_batch());
}

}  // namespace
}  // namespace accel::testing
