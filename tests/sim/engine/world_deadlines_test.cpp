// Deadlines on the wall clock: what is a time-out, and for whom. A deadline that fires for a rank that merely
// computes, or never fires, are the two failures to prevent. Time-outs are 50 ms here, and all waits are for
// events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rank computes, so the engine cannot know that it will never come.
TEST(WorldTest, RunningRankThatNeverJoinsIsATimeout) {
  World world({.num_ranks = 2, .timeout = std::chrono::milliseconds(50)});
  const auto error = failure_with_running_rank(world, 1, [&](int rank) {
    all_sum(world, *world.group("world", {0, 1}), rank, 1);
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 is running"));
}

// The error cannot be thrown before all ranks have returned, so `on_stuck` reports it while the run still hangs.
TEST(WorldTest, RankThatDoesNotReturnAfterATimeoutIsReported) {
  int num_notifications = 0;
  std::string text;
  std::atomic<bool> is_notified{false};
  World world({.num_ranks = 3, .timeout = std::chrono::milliseconds(50), .on_stuck = [&](const RunError& error) {
                 ++num_notifications;
                 text = error.what();
                 is_notified = true;
               }});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(3));
    all_sum(world, *group, rank, 1);
    while (rank == 1 && !is_notified) std::this_thread::yield();
    if (rank != 1) all_sum(world, *group, rank, 1);
  });
  EXPECT_EQ(num_notifications, 1);
  EXPECT_THAT(text, HasSubstr("ranks 0, 2: timed out after 50 ms"));
  EXPECT_THAT(
      text, HasSubstr("rank 1: has not returned from its own code; it is running, after all_reduce #0 of group world"));
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kTimeout);
}

// In a unit test no callback is set. Without this message a stuck test would be killed by ctest without any
// explanation.
TEST(WorldTest, StandardErrorNamesTheRankThatAStuckTestWaitsFor) {
  // A stream buffer that notices the flush, so that the stuck rank ends right after the message.
  struct Text : std::stringbuf {
    std::atomic<bool> is_notified{false};
    int sync() override {
      is_notified = true;
      return 0;
    }
  } text;
  auto* const before = std::cerr.rdbuf(&text);
  World world({.num_ranks = 2, .timeout = std::chrono::milliseconds(50)});
  failure_of(world, [&](int rank) {
    while (rank == 1 && !text.is_notified) std::this_thread::yield();
    if (rank == 0) all_sum(world, *world.group("world", {0, 1}), rank, 1);
  });
  std::cerr.rdbuf(before);
  EXPECT_THAT(text.str(), HasSubstr("the simulation is waiting for ranks that do not return from their own code:"));
  EXPECT_THAT(text.str(),
              HasSubstr("rank 1: has not returned from its own code; it is running, before any collective"));
}

TEST(WorldTest, ReceiveWithoutAWaitNeverTimesOut) {
  // A world checks deadlines every 100 ms, so 300 ms cover several checks. Only time spent in wait() counts.
  World world({.num_ranks = 2, .timeout = std::chrono::milliseconds(50)});
  bool is_received = false;
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr);
      return;
    }
    auto message = world.receive(*group, 0, 1, 0, {.op = Collective::kRecv}, nullptr,
                                 [&](const auto&, const auto&, auto) { is_received = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(350));
    world.wait(rank, *message);
  });
  EXPECT_TRUE(is_received);
}

// The sender is still running, so this is no deadlock.
TEST(WorldTest, ReceiverThatWaitsTooLongIsATimeout) {
  World world({.num_ranks = 2, .timeout = std::chrono::milliseconds(50)});
  const auto error = failure_with_running_rank(world, 0, [&](int) {
    wait_for_message(world, *world.group("world", {0, 1}));
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kTimeout);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(0));
  EXPECT_THAT(error.what(), HasSubstr("rank 1 waits in recv #0 from rank 0 of group world"));
  EXPECT_THAT(error.what(), HasSubstr("and rank 0 has not sent: it is running"));
}

}  // namespace
}  // namespace accel::sim
