// The world itself: every rank has a thread, collectives meet in order, groups are independent, and errors reach
// all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorldSizes : public ::testing::TestWithParam<int> {};
// 64 ranks exceed the cores of the machine by far, so threads must block and not spin.
INSTANTIATE_TEST_SUITE_P(Ranks, WorldSizes, ::testing::Values(1, 2, 3, 8, 64), ::testing::PrintToStringParamName());

// The basic promise, for one rank and for many.
TEST_P(WorldSizes, EveryRankGetsTheSumOfEveryCollective) {
  World world({.num_ranks = GetParam()});
  std::atomic<int> wrong{0};
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", first_ranks(GetParam()));
    for (int step = 0; step < 50; ++step) {
      // The sum depends on the step, so a result from another step has a wrong value.
      const int expected = GetParam() * (GetParam() - 1) / 2 + GetParam() * step;
      if (all_sum(world, *group, rank, rank + step) != expected) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Thread-local state of LibTorch, such as autocast, must not be shared between ranks.
TEST_P(WorldSizes, EveryRankHasItsOwnThread) {
  World world({.num_ranks = GetParam()});
  std::mutex mutex;
  std::set<std::thread::id> threads;
  run_ranks(world, [&](int) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(static_cast<int>(threads.size()), GetParam());
}

TEST(WorldTest, CallsAreKeptFromTheFirstTimeTheyAreTaken) {
  World world({.num_ranks = 2});
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", first_ranks(2));
    all_sum(world, *group, rank, 1);
    EXPECT_TRUE(world.take_calls_of(rank).empty());
    all_sum(world, *group, rank, 1);
    all_sum(world, *group, rank, 1);
    EXPECT_THAT(world.take_calls_of(rank),
                ElementsAre(HasSubstr("all_reduce #1 of group world"), HasSubstr("all_reduce #2 of group world")));
    EXPECT_TRUE(world.take_calls_of(rank).empty());
  });
}

// Each rank is a thread, so the number has to be limited.
TEST(WorldTest, NumberOfRanksIsChecked) {
  EXPECT_THROW(World({.num_ranks = 0}), ConfigError);
  EXPECT_THROW(World({.num_ranks = 100000}), ConfigError);
}

// The ranks issue 20 calls before they wait for the first: each must meet the call with the same number.
TEST(WorldTest, CallsThatAreIssuedTogetherMeetInOrder) {
  World world({.num_ranks = 3});
  std::atomic<int> wrong{0};
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", first_ranks(3));
    std::vector<std::shared_ptr<Summand>> values;
    std::vector<std::shared_ptr<Meeting>> meetings;
    for (int call = 0; call < 20; ++call) {
      values.push_back(std::make_shared<Summand>(Summand{call}));
      meetings.push_back(world.arrive(
          *group, rank, {.op = Collective::kAllReduce}, values.back(), [](std::span<const Participant> all) {
            for (const auto& one : all)
              static_cast<Summand*>(one.get())->output = 3 * static_cast<Summand*>(one.get())->input;
          }));
    }
    for (int call = 19; call >= 0; --call) {  // waits may come in any order
      world.wait(rank, *meetings[call]);
      if (values[call]->output != 3 * call) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

// The two groups have different sums, so a rank that meets the wrong group has a wrong result.
TEST(WorldTest, GroupsOfSomeRanksMeetAmongThemselves) {
  World world({.num_ranks = 4});
  std::atomic<int> wrong{0};
  run_ranks(world, [&](int rank) {
    const bool even = rank % 2 == 0;
    auto group = world.group(even ? "even" : "odd", even ? std::vector<int>{0, 2} : std::vector<int>{1, 3});
    auto value = std::make_shared<Summand>(Summand{rank});
    auto meeting =
        world.arrive(*group, rank / 2, {.op = Collective::kAllReduce}, value, [](std::span<const Participant> all) {
          const int sum = static_cast<Summand*>(all[0].get())->input + static_cast<Summand*>(all[1].get())->input;
          for (const auto& one : all) static_cast<Summand*>(one.get())->output = sum;
        });
    world.wait(rank, *meeting);
    if (value->output != (even ? 2 : 4)) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

// The other ranks are blocked in a collective that can never complete. They must be released, not time out.
TEST(WorldTest, RankThatThrowsFreesAllOthers) {
  World world({.num_ranks = 8});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(8));
    all_sum(world, *group, rank, 1);
    if (rank == 5) throw std::runtime_error("out of paper");
    all_sum(world, *group, rank, 1);
  });
  EXPECT_EQ(error.diagnosis(), nullptr);
  EXPECT_THAT(error.what(), ::testing::StartsWith("rank 5: out of paper"));
  EXPECT_THAT(error.what(), HasSubstr("ranks 0-4, 6-7: released from waiting by this failure"));
}

// Equal errors are merged, so that 1,000 ranks do not give 1,000 lines.
TEST(WorldTest, ErrorsOfSeveralRanksAreAllReported) {
  World world({.num_ranks = 3});
  const auto error = failure_of(world, [&](int rank) { throw std::runtime_error(rank == 0 ? "no paper" : "no ink"); });
  EXPECT_THAT(error.what(), HasSubstr("rank 0: no paper"));
  EXPECT_THAT(error.what(), HasSubstr("ranks 1-2: no ink"));
}

// An error of the sum, for example unequal shapes, belongs to all ranks of the collective.
TEST(WorldTest, ErrorOfTheComputationReachesEveryRank) {
  World world({.num_ranks = 3});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(3));
    auto meeting = world.arrive(*group, rank, {.op = Collective::kAllReduce}, nullptr,
                                [](auto) { throw ArgumentError("cannot add"); });
    world.wait(rank, *meeting);
  });
  EXPECT_STREQ(error.what(), "ranks 0-2: cannot add");
}

// DDP waits for futures in its hooks, so a future that is never completed hangs the backward pass.
TEST(WorldTest, FuturesAreCompletedByResultsAndByFailures) {
  World world({.num_ranks = 2});
  std::atomic<int> well{0}, failed{0};
  failure_of(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    const auto count = [&](std::exception_ptr error) { ++(error ? failed : well); };
    auto first = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
    first->when_ended(count);
    world.wait(rank, *first);
    if (rank == 1) throw std::runtime_error("gone");
    auto second = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
    second->when_ended(count);
    world.wait(rank, *second);
  });
  EXPECT_EQ(well, 2);
  EXPECT_LE(failed, 1);  // rank 0 may be freed before it arrives
}

// Two ranks that list a group's members in different orders would number themselves differently.
TEST(WorldTest, MembersOfAGroupMustAgree) {
  World world({.num_ranks = 2});
  world.group("pair", {0, 1});
  EXPECT_THROW(world.group("pair", {1, 0}), ArgumentError);
}

TEST(DescribeTest, RanksAreGivenAsRanges) {
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
}

}  // namespace
}  // namespace accel::sim
