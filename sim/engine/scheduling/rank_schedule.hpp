#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// The order in which ranks run: all at once (parallel), or one at a time in an order determined by a seed (serial).
///
///     auto policy = make_turn_policy({.kind = ScheduleKind::kRandom, .seed = 7}, /*num_ranks=*/4);
///     const int rank = policy->next(runnable, /*current=*/-1);
///
/// Source of pct: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010.
namespace accel::sim {

enum class ScheduleKind { kParallel, kRoundRobin, kRandom, kPct };

struct RankSchedule {
  ScheduleKind kind = ScheduleKind::kParallel;
  std::uint64_t seed = 0;
  int pct_depth = 3;  // the number of ordering constraints that make a bug; 1 to never change a priority
  // The expected number of turns of the run; priorities change at turns below it. Unset: the length is unknown,
  // and a change is as likely among the first 100 turns as between 1,000 and 100,000.
  std::optional<std::uint64_t> pct_events = {};
};

/// Parses "parallel", "round-robin", "random" or "pct"; throws ConfigError for another name.
ScheduleKind rank_schedule_kind(const std::string& name);
std::string name_of(ScheduleKind kind);

/// Chooses which rank has the next turn of a serial schedule.
class TurnPolicy {
 public:
  virtual ~TurnPolicy() = default;
  /// Returns one of `runnable` (sorted, not empty). `current` had the turn before; -1 at the start.
  virtual int next(const std::vector<int>& runnable, int current) = 0;
  /// Called when `rank` polls in a loop: other ranks should run first.
  virtual void demote(int /*rank*/) {}
};

/// Throws ConfigError for the parallel schedule, which has no turns.
std::unique_ptr<TurnPolicy> make_turn_policy(const RankSchedule& schedule, int num_ranks);

}  // namespace accel::sim
