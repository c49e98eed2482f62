// Times of ranks, on the wall clock and in virtual time: waiting for other ranks is told apart from transferring
// data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The time until the last rank arrives is waiting; only the rest is communication.
TEST(WorldTest, WallTimeSeparatesStragglersFromCommunication) {
  using namespace std::chrono_literals;
  World world({.num_ranks = 2, .records_times = true});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    // Rank 1 arrives last on purpose, so rank 0 waits for it, and rank 1 does not wait.
    while (rank == 1 && world.describe_rank(0).find("waits") == std::string::npos) std::this_thread::yield();
    auto meeting = world.arrive(*group, rank, {.op = Collective::kAllReduce, .bytes = 100}, nullptr,
                                [](auto) { std::this_thread::sleep_for(30ms); });
    world.wait(rank, *meeting);
  });
  EXPECT_GE(world.clocks().times(0).exposed_communication, 0.03);
  EXPECT_GT(world.clocks().times(0).straggler_wait, 0);
  EXPECT_EQ(world.clocks().times(1).straggler_wait, 0);
  const auto volume = world.volumes().at("all_reduce");
  EXPECT_EQ(volume.calls, 1);
  EXPECT_EQ(volume.bytes, 200);
  EXPECT_GE(volume.seconds, 0.03);
}

// Both ends of a message must appear in the timeline.
TEST(WorldTest, AWaitForASendIsRecordedInWallTime) {
  World world({.num_ranks = 2, .records_spans = true});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 0) world.wait(rank, *world.send(*group, 0, 1, 0, {.op = Collective::kSend, .bytes = 8}, nullptr));
    if (rank == 1) wait_for_message(world, *group);
  });
  for (const auto& [rank, op] : {std::pair(0, "send"), {1, "recv"}}) {
    const auto& spans = world.clocks().times(rank).spans;
    EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [&, op = op](const auto& span) { return span.name == op; }))
        << op;
  }
}

// The model is called in the middle of a collective, while other ranks wait.
TEST(WorldTest, AModelThatThrowsEndsTheRunWithItsReason) {
  for (const bool is_message : {false, true}) {
    World world({.num_ranks = 3,
                 .finish_times = [](const EngineGroup&, const Call&, std::span<const double>) -> std::vector<double> {
                   throw Error("no way to rank 2");
                 }});
    const auto error = failure_of(world, [&](int rank) {
      auto group = world.group("world", {0, 1, 2});
      if (!is_message) all_sum(world, *group, rank, 1);
      if (is_message && rank == 0) world.wait(rank, *world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr));
      if (is_message && rank == 1) wait_for_message(world, *group);
    });
    EXPECT_THAT(error.what(), HasSubstr("no way to rank 2"));
  }
}

// The group lists ranks 3, 1, 0. A model that got group ranks instead of world ranks would price the wrong links.
TEST(WorldTest, TheNetworkModelGetsOnlySenderAndReceiver) {
  std::vector<int> asked;
  World world(
      {.num_ranks = 4, .finish_times = [&](const EngineGroup& group, const Call& call, std::span<const double> ready) {
         if (call.op == Collective::kRecv) asked = group.ranks;
         return std::vector<double>(ready.size(), 7.0);
       }});
  run_ranks(world, [&](int rank) {
    auto group = world.group("some", {3, 1, 0});
    if (rank == 3) world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr);
    if (rank == 1) wait_for_message(world, *group);
  });
  EXPECT_THAT(asked, ElementsAre(3, 1));
  EXPECT_EQ(world.clocks().times(1).now, 7.0);
}

// The sender is three seconds late, and the transfer takes two. Only the latter is communication.
TEST(WorldTest, AMessageIsOnItsWayOnceBothEndsAreReady) {
  World world({.num_ranks = 2, .finish_times = [](const EngineGroup&, const Call&, std::span<const double> ready) {
                 return std::vector<double>(ready.size(), *std::max_element(ready.begin(), ready.end()) + 2);
               }});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 0) {
      world.clocks().delay(0, 3, "late");
      world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr);
    } else {
      wait_for_message(world, *group);
    }
  });
  EXPECT_NEAR(world.clocks().times(1).exposed_communication, 2, 1e-6);
  EXPECT_GT(world.clocks().times(1).straggler_wait, 2);
  EXPECT_NEAR(world.volumes().at("recv").seconds, 2, 1e-6);
}

// The receiver is three seconds late, and a send without buffers waits for it.
TEST(WorldTest, ASendWithoutRoomWaitsForItsReceive) {
  World world({.num_ranks = 2,
               .send_capacity = 0,
               .finish_times = [](const EngineGroup&, const Call&, std::span<const double> ready) {
                 return std::vector<double>(ready.size(), *std::max_element(ready.begin(), ready.end()) + 2);
               }});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 0) {
      world.wait(0, *world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr));
    } else {
      world.clocks().delay(1, 3, "late");
      wait_for_message(world, *group);
    }
  });
  EXPECT_GE(world.clocks().times(0).now, 3);
  EXPECT_GT(world.clocks().times(0).straggler_wait, 2);
}

// Both orders matter: the message is matched by the sender's thread in one case and by the receiver's in the other.
TEST(WorldTest, ErrorOfTheNetworkReachesTheReceiver) {
  for (const bool receives_first : {false, true}) {
    World world({.num_ranks = 2,
                 .finish_times = [](const EngineGroup&, const Call&, std::span<const double>) -> std::vector<double> {
                   throw ArgumentError("no way there");
                 }});
    std::atomic<bool> is_posted{false};
    const auto error = failure_of(world, [&](int rank) {
      auto group = world.group("world", {0, 1});
      while ((rank == 0) == receives_first && !is_posted) std::this_thread::yield();
      if (rank == 0) {
        world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr);
        is_posted = true;
      } else {
        auto message =
            world.receive(*group, 0, 1, 0, {.op = Collective::kRecv}, nullptr, [](const auto&, const auto&, auto) {});
        is_posted = true;
        world.wait(1, *message);
      }
    });
    EXPECT_STREQ(error.what(), "rank 1: no way there");
  }
}

}  // namespace
}  // namespace accel::sim
