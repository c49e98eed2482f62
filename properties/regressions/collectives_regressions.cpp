// Shrunk counterexamples of collectives_laws.cpp, as plain tests.
#include <gtest/gtest.h>

#include "properties/gen/collective_call.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::collectives_regressions {
namespace {

TEST(CollectiveRegressions, ListReduceScatterKeepsTheByteOfABoolSum) {
  // true + true is the byte 2 in Gloo. A copy between bool tensors would normalize it to 1.
  const CollectiveCall call{.op = Op::kReduceScatter, .dtype = at::kBool, .numel = 1, .seed = 0};
  const auto run = [&](Backend backend) {
    return collect_ranks(backend, 2, [&](RankContext& rank) { return perform(call, rank)[0]; });
  };
  const auto sim = run(Backend::kSim), gloo = run(Backend::kGlooThreads);
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(same_bytes(sim[rank], gloo[rank])) << rank;
}

// c10d's ProcessGroup::barrier assigns a static tensor, and threads that are ranks raced for it. 16 ranks with
// 400 barriers make such a race likely.
TEST(CollectiveRegressions, BarriersOfManyRanksDoNotRaceForOneTensor) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(Backend::kSim, 16, [](RankContext& rank) {
      for (int call = 0; call < 20; ++call) rank.world.process_group()->barrier()->wait();
    });
  }
}

}  // namespace
}  // namespace accel::testing::collectives_regressions
