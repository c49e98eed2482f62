// Messages between simulated ranks take the time that the described network gives them.
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "reference/state/rank_context.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"

namespace accel::testing::rehearsed_messages_test {
namespace {

constexpr int kNumRanks = 4;

// Every rank sends to the next one, `count` times. Receives are posted either before all sends or after them.
sim::SimulationReport pass_around(int count, bool receives_first) {
  const auto network = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/networks/nvlink_8.yaml";
  const programs::Rehearsal rehearsal({.network = network}, kNumRanks);
  return programs::run_threads(rehearsal, std::chrono::minutes(1), [&](RankContext& rank) {
    auto own = at::full({1 << 20}, rank.rank), other = at::full({1 << 20}, -1);
    const int next = (rank.rank + 1) % kNumRanks, previous = (rank.rank + kNumRanks - 1) % kNumRanks;
    for (int message = 0; message < count; ++message) {
      std::optional<Work> receive;
      if (receives_first) receive = rank.world.recv(other, previous);
      rank.world.barrier();
      rank.world.send(own, next).wait();
      rank.world.barrier();
      if (!receives_first) receive = rank.world.recv(other, previous);
      receive->wait();
    }
    EXPECT_EQ(other[0].item<int>(), previous);
  });
}

class RehearsedMessagesTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Orders, RehearsedMessagesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ReceiveFirst" : "SendFirst"; });

// Twice as many messages take twice the time.
TEST_P(RehearsedMessagesTest, EveryMessageTakesItsTimeInAGroupOfAnySize) {
  std::vector<double> seconds;
  for (const int count : {1, 2}) {
    const auto report = pass_around(count, GetParam());
    if (report.error) std::rethrow_exception(report.error);
    for (const auto& rank : report.times) {
      EXPECT_TRUE(std::isfinite(rank.now));
      EXPECT_GT(rank.straggler_wait + rank.exposed_communication, 0) << "every rank waits for its message";
    }
    seconds.push_back(report.times.front().now);
  }
  EXPECT_GT(seconds[0], (4 << 20) / 1e12) << "4 MiB take longer than 1 TB/s would";
  EXPECT_GT(seconds[1], 1.5 * seconds[0]);
}

// A message starts when both ranks are ready, so a late receive still waits for the full transfer.
TEST(RehearsedMessagesTest, AMessageStartsOnlyWithItsReceive) {
  const auto network = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/networks/nvlink_8.yaml";
  const auto wait_of = [&](int num_products) {
    const auto report = programs::run_threads(programs::Rehearsal({.network = network}, 2), std::chrono::minutes(1),
                                              [&](RankContext& rank) {
                                                auto tensor = at::zeros({1 << 20});
                                                if (rank.rank == 0) rank.world.send(tensor, 1).wait();
                                                if (rank.rank == 0) return;
                                                // 200 products take longer than the message would.
                                                for (int product = 0; product < num_products; ++product)
                                                  at::mm(at::ones({512, 512}), at::ones({512, 512}));
                                                rank.world.recv(tensor, 0).wait();
                                              });
    if (report.error) std::rethrow_exception(report.error);
    return std::pair(report.times[1].exposed_communication, report.times[1].compute);
  };
  const auto [wait, compute] = wait_of(0);
  const auto [late_wait, late_compute] = wait_of(200);
  EXPECT_GT(late_compute - compute, 2 * wait) << "the message would have arrived in this time";
  EXPECT_GT(late_wait, 0.5 * wait);
}

}  // namespace
}  // namespace accel::testing::rehearsed_messages_test
