#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/engine/scheduling/rank_schedule.hpp"

/// Runs a program under many schedules, and makes the first that goes wrong small.
///
///     auto found = explore({.num_ranks = 8, .schedule = {.kind = ScheduleKind::kPct}}, /*num_schedules=*/1000, run);
///     if (found.failure) replay(*found.failure);
namespace accel::sim {

/// One run, named by what decides it.
struct Trial {
  int num_ranks = 1;
  std::int64_t max_steps = 0;  // 0: as many as the program has
  bool has_steps = true;       // false: it cannot be cut short
  RankSchedule schedule = {};
  std::vector<int> faults = {};  // of a plan, those that are injected
};

/// What went wrong in a trial, in words that are the same for the same fault: "" if nothing did.
using RunTrial = std::function<std::string(const Trial& trial)>;

struct Exploration {
  std::int64_t num_schedules = 0;  // that were run before something went wrong
  std::optional<Trial> failure;    // shrunk
  std::string signature;
};

/// Runs `first` under the schedules of its seed, the next, and so on, until one goes wrong; then looks for the fewest
/// ranks, faults and steps, in this order, that go wrong in the same way.
Exploration explore(const Trial& first, std::int64_t num_schedules, const RunTrial& run);

/// The smallest trial found that has the signature of `failing`.
Trial shrink(Trial failing, const std::string& signature, const RunTrial& run);

}  // namespace accel::sim
