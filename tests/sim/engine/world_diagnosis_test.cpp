// Diagnoses of mismatched and missing calls: every rank must get the same explanation, and it must name the
// culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every rank gets the same text, since users read only one of the logs.
TEST(WorldTest, DifferentCallsAreExplainedOnEveryRank) {
  World world({.num_ranks = 4});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(4));
    all_sum(world, *group, rank, 1);
    Call call{
        .op = Collective::kAllReduce, .reduce_op = rank == 2 ? "max" : "sum", .dtype = "float32", .shapes = {{64, 10}}};
    all_sum(world, *group, rank, 1, std::move(call));
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kDesync);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(2));
  EXPECT_EQ(error.diagnosis()->sequence, 1u);
  EXPECT_THAT(error.what(), HasSubstr("ranks 0-1, 3: all_reduce(sum, float32 [64, 10])"));
  EXPECT_THAT(error.what(), HasSubstr("rank 2: all_reduce(max, float32 [64, 10])"));
  for (const auto& outcome : error.outcomes()) EXPECT_TRUE(outcome.error) << outcome.rank;
}

TEST(WorldTest, DiagnosisIsKeptWhicheverRankWakesFirst) {
  // The rank that ends the meeting is held back until the run has failed. Then a rank that was woken early reports
  // first.
  World world({.num_ranks = 4});
  std::atomic<bool> is_held{false};
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(4));
    while (rank > 0 && !is_held) std::this_thread::yield();
    auto meeting = world.arrive(*group, rank, {.op = rank == 2 ? Collective::kBroadcast : Collective::kAllReduce},
                                nullptr, [](auto) {});
    if (rank == 0) {
      meeting->when_ended([&](std::exception_ptr) {
        while (!world.failures().failure()) std::this_thread::yield();
      });
      is_held = true;
    }
    world.wait(rank, *meeting);
  });
  EXPECT_NE(error.diagnosis(), nullptr) << error.what();
}

// No rank calls the world again after this failure, so only the end of the run can report it.
TEST(WorldTest, FailureAfterTheLastCallIsReported) {
  World world({.num_ranks = 3});
  const auto error = failure_of(world, [&](int rank) {
    if (rank == 1)
      world.fail(std::make_exception_ptr(
          DiagnosedError({.kind = Diagnosis::Kind::kDesync, .ranks = {1}, .text = "found too late"})));
  });
  EXPECT_STREQ(error.what(), "ranks 0-2: found too late");
  ASSERT_NE(error.diagnosis(), nullptr);
}

// Fails the run while a collective is being lost, as if another rank had failed it.
class FailsAndLoses : public FaultModel {
 public:
  void before_call(World&, int, const EngineGroup&, std::uint64_t, Call&) override {}
  MeetingFaults on_meeting(World& world, const EngineGroup&, std::uint64_t, const Call&) override {
    world.fail(std::make_exception_ptr(Error("failed meanwhile")));
    return {.is_lost = true};
  }
  void at_point(World&, int, StepPoint, std::int64_t) override {}
  double lost_seconds(int, double) override { return 0; }
  void on_rendezvous(World&, int) override {}
  std::shared_ptr<Files> files(World&, int, std::shared_ptr<Files> disk) override { return disk; }
  bool on_quiescence(World&) override { return false; }
  bool restarts() override { return false; }
};

// Two faults at once: the run has failed, and a collective never finishes.
TEST(WorldTest, CollectiveThatIsLostDuringAFailureEnds) {
  World world({.num_ranks = 2, .faults = std::make_shared<FailsAndLoses>()});
  const auto error = failure_of(world, [&](int rank) {
    all_sum(world, *world.group("world", {0, 1}), rank, /*input=*/1);
  });
  EXPECT_STREQ(error.what(), "ranks 0-1: failed meanwhile");
}

// Two ranks give no majority, so neither call can be called wrong.
TEST(WorldTest, OnATieAllRanksAreCulprits) {
  World world({.num_ranks = 2});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(2));
    all_sum(world, *group, rank, 1, {.op = rank == 0 ? Collective::kBroadcast : Collective::kAllReduce});
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(0, 1));
}

// All other ranks are blocked and the culprit has ended, so waiting for the timeout is not necessary.
TEST(WorldTest, SkippedCollectiveIsDiagnosedAtOnce) {
  World world({.num_ranks = 4});  // the time-out is half an hour
  const auto start = std::chrono::steady_clock::now();
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(4));
    for (int step = 0; step < 3; ++step) {
      if (rank == 3 && step == 2) return;
      all_sum(world, *group, rank, 1);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kHang);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(3));
  EXPECT_EQ(error.diagnosis()->sequence, 2u);
  EXPECT_EQ(error.diagnosis()->waiting.size(), 3u);
  EXPECT_THAT(error.what(), HasSubstr("3 of 4 ranks arrived (ranks 0-2)"));
  EXPECT_THAT(error.what(), HasSubstr("missing: rank 3 has ended its program, after all_reduce #1 of group world"));
}

// A cycle over two groups: each group alone looks like a slow rank.
TEST(WorldTest, RanksThatWaitForEachOtherInTwoGroupsAreDiagnosed) {
  World world({.num_ranks = 2});
  const auto error = failure_of(world, [&](int rank) {
    auto a = world.group("a", {0, 1});
    auto b = world.group("b", {0, 1});
    all_sum(world, rank == 0 ? *a : *b, rank, 1);
    all_sum(world, rank == 0 ? *b : *a, rank, 1);
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kHang);
  EXPECT_THAT(error.what(), HasSubstr("group a"));
  EXPECT_THAT(error.what(), HasSubstr("group b"));
}

}  // namespace
}  // namespace accel::sim
