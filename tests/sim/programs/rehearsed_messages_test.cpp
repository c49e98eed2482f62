// Messages between simulated ranks take the time that the described network gives them.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <thread>

#include "sim/programs/rehearsal.hpp"

namespace accel::testing::rehearsed_messages_test {
namespace {

constexpr int kNumRanks = 4;

// Every rank sends to the next, `count` times; receives are posted before any send, or all after.
sim::SimulationReport pass_around(int count, bool receives_first) {
  const auto network = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/networks/nvlink_8.yaml";
  const programs::Rehearsal rehearsal({.network = network}, kNumRanks);
  return rehearsal.run(std::chrono::minutes(1), [&](RankContext& rank) {
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
INSTANTIATE_TEST_SUITE_P(Orders, RehearsedMessagesTest, ::testing::Bool(), [](const auto& info) { return info.param ? "ReceiveFirst" : "SendFirst"; });

TEST_P(RehearsedMessagesTest, EveryMessageTakesItsTimeInAGroupOfAnySize) {
  std::vector<double> seconds;
  for (const int count : {1, 2}) {
    const auto report = pass_around(count, GetParam());
    if (report.error) std::rethrow_exception(report.error);
    for (const auto& rank : report.times) {
      EXPECT_TRUE(std::isfinite(rank.now));
      EXPECT_GT(rank.straggler_wait + rank.exposed_communication, 0) << "waits for its message";
    }
    seconds.push_back(report.times.front().now);
  }
  EXPECT_GT(seconds[0], (4 << 20) / 1e12) << "4 MiB take longer than 1 TB/s would";
  EXPECT_GT(seconds[1], 1.5 * seconds[0]);
}

// A message starts when both its ranks are there: a receive that comes late waits for all of it.
TEST(RehearsedMessagesTest, AMessageDoesNotTravelBeforeItIsAskedFor) {
  const auto network = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/networks/nvlink_8.yaml";
  const auto wait_of = [&](double late) {
    const auto report = programs::Rehearsal({.network = network}, 2).run(std::chrono::minutes(1), [&](RankContext& rank) {
      auto tensor = at::zeros({1 << 20});
      if (rank.rank == 0) rank.world.send(tensor, 1).wait();
      if (rank.rank == 0) return;
      std::this_thread::sleep_for(std::chrono::duration<double>(late));
      double sum = 0;
      const auto begun = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(late)) sum += std::sqrt(sum + 1);  // the clock counts processor time
      EXPECT_GE(sum, 0);
      rank.world.recv(tensor, 0).wait();
    });
    if (report.error) std::rethrow_exception(report.error);
    return report.times[1].exposed_communication;
  };
  EXPECT_GT(wait_of(0.05), 0.5 * wait_of(0));
}

}  // namespace
}  // namespace accel::testing::rehearsed_messages_test
