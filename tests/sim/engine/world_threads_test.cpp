// Ranks of which several threads wait: one thread of the engine waits for all of their meetings, and can stop waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "sim/engine/rank_calls.hpp"
#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Meeting> start(World& world, EngineGroup& group, int rank) {
  return world.arrive(group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
}

// Ends when one of the meetings has ended.
std::shared_ptr<Completion> any_of(World& world, const std::vector<std::shared_ptr<Meeting>>& meetings) {
  const auto any = std::make_shared<Completion>();
  for (const auto& meeting : meetings) meeting->when_ended([&world, any](const auto&) { world.end(*any); });
  return any;
}

std::vector<RankWait> waits_of(World& world, int rank, const std::vector<std::shared_ptr<Meeting>>& meetings) {
  std::vector<RankWait> waits;
  for (const auto& meeting : meetings)
    waits.push_back({.rank = rank, .meeting = meeting.get(), .call = world.own_last_call_of(rank)});
  return waits;
}

void wait_with_interruptions(World& world, int rank, Meeting& meeting) {
  const auto wait = world.begin_wait(rank, meeting);
  const RankWait own{.rank = rank, .meeting = &meeting, .call = world.own_last_call_of(rank)};
  while (!meeting.has_ended()) world.block(rank, meeting, {&own, 1});
  world.end_wait(rank, meeting, wait);
}

// Some sleeps return at once, so that a rank joins and leaves the waiting ranks while the meeting ends.
TEST(WorldThreadsTest, InterruptedSleepsLoseNoCollectiveAndFindNoHang) {
  constexpr int kRanks = 6;
  std::atomic<unsigned> num_sleeps{0};
  World world({.num_ranks = kRanks, .sleep = [&](int, const Completion& completion) {
                 if (num_sleeps++ % 8 == 0) completion.sleep();
               }});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", first_ranks(kRanks));
    for (int step = 0; step < 300; ++step) wait_with_interruptions(world, rank, *start(world, *group, rank));
  });
}

TEST(WorldThreadsTest, AHangIsFoundAfterInterruptedSleeps) {
  World world({.num_ranks = 3, .sleep = [](int, const Completion&) { std::this_thread::yield(); }});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(3));
    for (int step = 0; step < 100; ++step) wait_with_interruptions(world, rank, *start(world, *group, rank));
    if (rank != 2) wait_with_interruptions(world, rank, *start(world, *group, rank));
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kHang);
  EXPECT_EQ(error.diagnosis()->waiting.size(), 2u);
}

// Completions end just when the rank stops waiting for them. A rank that was counted twice would hide a hang.
TEST(WorldThreadsTest, ARankThatStopsWaitingIsCountedOnce) {
  constexpr int kRounds = 20'000;
  std::atomic<int> num_hangs{0}, num_begun{0};
  Completion never;
  std::unique_ptr<RankScheduler> scheduler;
  const auto end_hang = [&] {
    ++num_hangs;
    if (never.claim(nullptr)) scheduler->end(never);
  };
  scheduler = make_rank_scheduler({}, /*num_ranks=*/2, end_hang, [](int, const Completion&) {});
  std::vector<Completion> completions(kRounds);
  std::thread ending([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (num_begun <= round) std::this_thread::yield();
      completions[round].claim(nullptr);
      scheduler->end(completions[round]);
    }
  });
  for (auto& completion : completions) {
    ++num_begun;
    while (!completion.has_ended()) scheduler->block(/*rank=*/0, completion);
  }
  ending.join();
  EXPECT_EQ(num_hangs, 0);
  std::thread leaving([&] { scheduler->leave(/*rank=*/1); });
  leaving.join();
  scheduler->block(/*rank=*/0, never);
  EXPECT_EQ(num_hangs, 1);
}

class ThreadsInSchedule : public ::testing::TestWithParam<ScheduleKind> {};
INSTANTIATE_TEST_SUITE_P(Schedules, ThreadsInSchedule,
                         ::testing::Values(ScheduleKind::kParallel, ScheduleKind::kRoundRobin, ScheduleKind::kRandom));

// Rank 0 joins both collectives of a step before it waits, and rank 1 makes them in either order.
TEST_P(ThreadsInSchedule, ARankWaitsForTheFirstOfSeveralMeetings) {
  World world({.num_ranks = 2, .schedule = {.kind = GetParam(), .seed = 3}});
  run_ranks(world, [&](int rank) {
    const std::vector groups{world.group("first", {0, 1}), world.group("second", {0, 1})};
    for (int step = 0; step < 100; ++step) {
      if (rank == 1) {
        wait_with_interruptions(world, rank, *start(world, *groups[step % 2], rank));
        wait_with_interruptions(world, rank, *start(world, *groups[(step + 1) % 2], rank));
        continue;
      }
      std::vector meetings{start(world, *groups[0], rank), start(world, *groups[1], rank)};
      while (!meetings.empty()) {
        world.block(rank, *any_of(world, meetings), waits_of(world, rank, meetings));
        EXPECT_GT(std::erase_if(meetings, [](const auto& meeting) { return meeting->has_ended(); }), 0u);
      }
    }
  });
}

TEST_P(ThreadsInSchedule, AHangNamesAllMeetingsOfARank) {
  World world({.num_ranks = 2, .schedule = {.kind = GetParam(), .seed = 3}});
  const auto error = failure_of(world, [&](int rank) {
    const std::vector groups{world.group("first", {0, 1}), world.group("second", {0, 1})};
    if (rank == 1) return;
    const std::vector meetings{start(world, *groups[0], rank), start(world, *groups[1], rank)};
    const auto waits = waits_of(world, rank, meetings);
    world.block(rank, *any_of(world, meetings), waits);
    world.end_wait(rank, *meetings[0], {});
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->waiting.size(), 2u);
  EXPECT_THAT(error.diagnosis()->text, HasSubstr("barrier #0 of group first"));
  EXPECT_THAT(error.diagnosis()->text, HasSubstr("barrier #0 of group second"));
}

// The rank that can continue joins the collective, as the second thread of a process does.
TEST_P(ThreadsInSchedule, ARankThatCanContinueIsNoHang) {
  std::shared_ptr<Completion> rest;
  int num_continued = 0;
  World* running = nullptr;
  World world({.num_ranks = 2, .schedule = {.kind = GetParam(), .seed = 3}, .continue_rank = [&] {
                 if (!rest) return false;
                 ++num_continued;
                 running->end(*std::exchange(rest, nullptr));
                 return true;
               }});
  running = &world;
  run_ranks(world, [&](int rank) {
    const std::vector groups{world.group("first", {0, 1}), world.group("second", {0, 1})};
    if (rank == 1) {
      world.wait(rank, *start(world, *groups[1], rank));
      return world.wait(rank, *start(world, *groups[0], rank));
    }
    const std::vector meetings{start(world, *groups[0], rank)};
    const auto any = any_of(world, meetings);
    rest = any;
    world.block(rank, *any, waits_of(world, rank, meetings));
    EXPECT_FALSE(meetings[0]->has_ended());
    world.wait(rank, *start(world, *groups[1], rank));
    world.wait(rank, *meetings[0]);
  });
  EXPECT_EQ(num_continued, 1);
}

}  // namespace
}  // namespace accel::sim
