// Complete programs under every schedule: what they compute, what is logged and how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "tests/sim/engine/any_program.hpp"

namespace accel::sim {
namespace {

using ::testing::HasSubstr;

constexpr ScheduleKind kAll[] = {ScheduleKind::kParallel, ScheduleKind::kRoundRobin, ScheduleKind::kRandom,
                                 ScheduleKind::kPct};

// What a run showed: its events, its error, and how many results were wrong.
struct Outcome {
  std::vector<std::string> events;
  std::optional<RunError> error;
  int wrong = 0;

  [[nodiscard]] std::string message() const { return error ? error->what() : ""; }
};

Outcome run(const Program& program, const RankSchedule& schedule, const Deviation& deviation = {}) {
  World world({.num_ranks = program.num_ranks, .schedule = schedule, .logs_events = true});
  std::atomic<int> wrong{0};
  Outcome outcome;
  try {
    run_ranks(world, [&](int rank) { wrong += run_rank(world, program, rank, deviation); });
  } catch (const RunError& error) {
    outcome.error = error;
  }
  outcome.wrong = wrong;
  outcome.events = world.log().lines();
  return outcome;
}

// The parallel schedule is included, because all schedules must agree in results and in the diagnosis.
class EverySchedule : public ::testing::TestWithParam<ScheduleKind> {};
INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule, ::testing::ValuesIn(kAll), [](const auto& info) {
  auto name = name_of(info.param);
  std::erase(name, '-');
  return name;
});

TEST_P(EverySchedule, GivesTheSameResults) {
  // 100 random programs have groups, messages and late waits in many combinations.
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto outcome = run(any_program(seed), {.kind = GetParam(), .seed = seed, .pct_events = 100});
    ASSERT_FALSE(outcome.error.has_value()) << "seed " << seed << ": " << outcome.error->what();
    ASSERT_EQ(outcome.wrong, 0) << "seed " << seed;
  }
}

// A skipped collective must end in a diagnosis within the test, not by a time-out of half an hour.
TEST_P(EverySchedule, SkippedCollectiveEndsInADiagnosisOnEveryRankThatWaits) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto program = any_program(seed);
    const int rank = static_cast<int>(seed % static_cast<std::uint64_t>(program.num_ranks));
    const int step = some_collective_of(program, rank, seed);
    if (step < 0) continue;
    ++tried;
    const auto outcome =
        run(program, {.kind = GetParam(), .seed = seed}, {.rank = rank, .step = static_cast<std::size_t>(step)});
    ASSERT_TRUE(outcome.error.has_value()) << "seed " << seed << ", rank " << rank << ", step " << step;
    ASSERT_NE(outcome.error->diagnosis(), nullptr) << "seed " << seed << ": " << outcome.error->what();
    const auto& diagnosis = *outcome.error->diagnosis();
    EXPECT_EQ(diagnosis.kind, Diagnosis::Kind::kHang) << "seed " << seed;
    EXPECT_FALSE(diagnosis.ranks.empty()) << "seed " << seed;
    EXPECT_FALSE(diagnosis.waiting.empty()) << "seed " << seed;
    for (const auto& waiting : diagnosis.waiting)
      EXPECT_TRUE(outcome.error->outcomes()[waiting.rank].error) << "seed " << seed << ", rank " << waiting.rank;
  }
  // A few programs have no collective of that rank.
  EXPECT_GT(tried, 90);
}

// The other ranks fail as a consequence. If they were reported as causes, a user would look at the wrong rank.
TEST_P(EverySchedule, RankThatThrowsIsTheOnlyCause) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto program = any_program(seed);
    const int rank = static_cast<int>(seed % static_cast<std::uint64_t>(program.num_ranks));
    const Deviation deviation{.rank = rank, .step = seed % program.steps.size(), .kind = Deviation::Kind::kThrows};
    const auto outcome = run(program, {.kind = GetParam(), .seed = seed}, deviation);
    ASSERT_TRUE(outcome.error.has_value()) << "seed " << seed;
    EXPECT_EQ(outcome.error->diagnosis(), nullptr) << "seed " << seed;
    EXPECT_THAT(outcome.error->what(), ::testing::StartsWith("rank " + std::to_string(rank) + ": planted"))
        << "seed " << seed;
    for (const auto& other : outcome.error->outcomes()) {
      const bool is_well = other.rank == rank || !other.error || other.released;
      // `released` marks ranks that were stopped because of another rank's failure.
      EXPECT_TRUE(is_well) << "seed " << seed << ", rank " << other.rank << ": " << other.message;
    }
  }
}

// Replaying a failure depends on this.
TEST(SerialWorldTest, SeedGivesTheSameEventsByteForByte) {
  for (const auto kind : kSerial) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const RankSchedule schedule{.kind = kind, .seed = seed, .pct_events = 100};
      const auto first = run(any_program(seed), schedule);
      ASSERT_EQ(first.events, run(any_program(seed), schedule).events) << name_of(kind) << " seed " << seed;
    }
  }
}

// Failures must be reproducible above all, including the order in which ranks notice them.
TEST(SerialWorldTest, ASeedGivesTheSameEventsOfAFailure) {
  for (const auto kind : kSerial) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const auto program = any_program(seed);
      const RankSchedule schedule{.kind = kind, .seed = seed, .pct_events = 100};
      const Deviation deviation{.rank = 0,
                                .step = seed % program.steps.size(),
                                .kind = seed % 2 == 0 ? Deviation::Kind::kThrows : Deviation::Kind::kEnds};
      const auto first = run(program, schedule, deviation), second = run(program, schedule, deviation);
      ASSERT_EQ(first.events, second.events) << name_of(kind) << " seed " << seed;
      ASSERT_EQ(first.message(), second.message()) << name_of(kind) << " seed " << seed;
    }
  }
}

// Searching for races is useless if most seeds give the same order. PCT has few choices, so more than half must
// differ.
TEST(SerialWorldTest, OtherSeedsAreOtherOrdersOfTheSameEvents) {
  for (const auto kind : {ScheduleKind::kRandom, ScheduleKind::kPct}) {
    std::set<std::vector<std::string>> orders;
    const auto program = any_program(3);
    for (std::uint64_t seed = 0; seed < 20; ++seed)
      orders.insert(run(program, {.kind = kind, .seed = seed, .pct_events = 100}).events);
    EXPECT_GT(orders.size(), 10u) << name_of(kind);
  }
}

// The other ranks arrive only if a polling rank gives up its turn.
TEST(SerialWorldTest, PollingRankLetsTheOthersArrive) {
  for (const auto kind : kSerial) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      World world({.num_ranks = 3, .schedule = {.kind = kind, .seed = seed}});
      run_ranks(world, [&](int rank) {
        auto group = world.group("world", {0, 1, 2});
        for (int call = 0; call < 5; ++call) {
          auto meeting = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
          while (rank < 2 && !world.poll(rank, *meeting)) {
          }
          world.wait(rank, *meeting);
        }
      });
    }
  }
}

// In a serial schedule only one rank runs at a time. If it never gives up its turn, no other could report a
// timeout.
TEST(SerialWorldTest, AHolderThatNeverReturnsIsATimeoutForAll) {
  for (const auto kind : kSerial) {
    World world({.num_ranks = 3, .timeout = std::chrono::milliseconds(100), .schedule = {.kind = kind, .seed = 2}});
    std::atomic<bool> has_failed{false};
    try {
      run_ranks(world, [&](int rank) {
        auto group = world.group("world", {0, 1, 2});
        const auto barrier = [&] {
          auto meeting = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
          world.wait(rank, *meeting);
        };
        barrier();
        if (rank == 1) {
          // Gives its turn away until the other ranks wait, then keeps it.
          auto never =
              world.receive(*group, 0, 1, 0, {.op = Collective::kRecv}, nullptr, [](const auto&, const auto&, auto) {});
          for (int turn = 0; turn < 50; ++turn) world.poll(1, *never);
          while (!has_failed) std::this_thread::yield();
          return;
        }
        try {
          barrier();
        } catch (...) {
          has_failed = true;
          throw;
        }
      });
      FAIL() << "expected a timeout";
    } catch (const RunError& error) {
      ASSERT_NE(error.diagnosis(), nullptr);
      EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kTimeout) << name_of(kind);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 is running, after recv")) << name_of(kind);
      EXPECT_THAT(error.diagnosis()->ranks, ::testing::Contains(1)) << name_of(kind);
    }
  }
}

// No other rank gets a turn, so none of them can check a deadline. A watchdog thread must do it.
TEST(SerialWorldTest, AnEndlessTurnIsATimeoutAlthoughNoRankCanCall) {
  for (const auto kind : kSerial) {
    World world({.num_ranks = 3, .timeout = std::chrono::milliseconds(100), .schedule = {.kind = kind, .seed = 2}});
    std::atomic<int> holder{-1};
    try {
      run_ranks(world, [&](int rank) {
        if (holder.exchange(rank) == -1) {
          while (!world.failures().failure()) std::this_thread::yield();
          return;
        }
        world.arrive(*world.group("world", {0, 1, 2}), rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
      });
      FAIL() << "expected a timeout";
    } catch (const RunError& error) {
      ASSERT_NE(error.diagnosis(), nullptr);
      EXPECT_EQ(error.diagnosis()->kind, Diagnosis::Kind::kTimeout) << name_of(kind);
      EXPECT_THAT(error.diagnosis()->ranks, ::testing::SizeIs(1)) << name_of(kind);
      EXPECT_THAT(error.what(), HasSubstr("does not end its turn: it is running, before any collective"))
          << name_of(kind);
    }
  }
}

// --- the chain of meetings, in parallel ------------------------------------------------------------------------------

TEST(MeetingChainTest, RanksThatRunAheadMeetInOrder) {
  // No rank waits before it has issued all of its calls. Chains of meetings grow long, and slow ranks read them
  // late.
  constexpr int kRanks = 8, kGroups = 6, kCalls = 60;
  for (int round = 0; round < 10; ++round) {
    World world({.num_ranks = kRanks});
    std::atomic<int> wrong{0};
    run_ranks(world, [&](int rank) {
      std::vector<std::shared_ptr<Meeting>> meetings;
      std::vector<std::shared_ptr<int>> values;
      std::vector<std::shared_ptr<EngineGroup>> groups;
      for (int index = 0; index < kGroups; ++index) {
        std::vector<int> ranks;
        for (int member = 0; member < kRanks; ++member) {
          // Six groups whose members overlap, so ranks pass each other in different groups.
          if (index == 0 || (member >> (index - 1) % 3 & 1) == (index > 3 ? 1 : 0)) ranks.push_back(member);
        }
        groups.push_back(world.group("group" + std::to_string(index), ranks));
      }
      for (int call = 0; call < kCalls; ++call) {
        for (const auto& group : groups) {
          const int member = group->group_rank_of(rank);
          if (member < 0) continue;
          values.push_back(std::make_shared<int>(call));
          meetings.push_back(world.arrive(
              *group, member, {.op = Collective::kAllReduce}, values.back(), [](std::span<const Participant> all) {
                int sum = 0;
                for (const auto& one : all) sum += *static_cast<int*>(one.get());
                const bool alike = sum == static_cast<int>(all.size()) * *static_cast<int*>(all[0].get());
                for (const auto& one : all) *static_cast<int*>(one.get()) = alike ? -1 : -2;
              }));
        }
      }
      for (std::size_t place = meetings.size(); place-- > 0;) {
        world.wait(rank, *meetings[place]);
        if (*values[place] != -1) ++wrong;
      }
    });
    EXPECT_EQ(wrong, 0);
  }
}

// The failing rank and its call vary over the rounds, and half of the ranks have a second group.
TEST(MeetingChainTest, FailuresInBetweenReachEveryRunningRank) {
  constexpr int kRanks = 8;
  for (int round = 0; round < 60; ++round) {
    World world({.num_ranks = kRanks});
    // 17 and 8 are coprime, so all combinations of rank and call occur over the rounds.
    const int culprit = round % kRanks, at_call = round % 17;
    try {
      run_ranks(world, [&](int rank) {
        auto all = world.group("world", {0, 1, 2, 3, 4, 5, 6, 7});
        auto half =
            world.group(rank < 4 ? "low" : "high", rank < 4 ? std::vector{0, 1, 2, 3} : std::vector{4, 5, 6, 7});
        std::vector<std::shared_ptr<Meeting>> meetings;
        for (int call = 0; call < 30; ++call) {
          if (rank == culprit && call == at_call) {
            // Three kinds of failures: an exception, an early end, and another collective.
            if (round % 3 == 0) throw std::runtime_error("planted");
            if (round % 3 == 1) return;
          }
          const Call differs{.op = round % 3 == 2 && rank == culprit && call == at_call ? Collective::kBroadcast
                                                                                        : Collective::kAllReduce};
          meetings.push_back(world.arrive(*all, rank, differs, nullptr, [](auto) {}));
          meetings.push_back(world.arrive(*half, rank % 4, {.op = Collective::kBarrier}, nullptr, [](auto) {}));
          if (call % 5 == 4) world.wait(rank, *meetings.back());
        }
        for (const auto& meeting : meetings) world.wait(rank, *meeting);
      });
      FAIL() << "round " << round;
    } catch (const RunError& error) {
      const auto* diagnosis = error.diagnosis();
      if (round % 3 == 0) {
        EXPECT_EQ(diagnosis, nullptr) << error.what();
      } else {
        ASSERT_NE(diagnosis, nullptr) << error.what();
        EXPECT_EQ(diagnosis->kind, round % 3 == 1 ? Diagnosis::Kind::kHang : Diagnosis::Kind::kDesync);
        EXPECT_THAT(diagnosis->ranks, ::testing::Contains(culprit));
      }
      for (const auto& outcome : error.outcomes()) {
        const bool may_end_well = round % 3 == 1 && outcome.rank == culprit;
        EXPECT_TRUE(may_end_well || outcome.error) << "round " << round << ", rank " << outcome.rank;
      }
    }
  }
}

}  // namespace
}  // namespace accel::sim
