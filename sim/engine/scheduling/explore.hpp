#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/engine/scheduling/rank_schedule.hpp"

/// Runs a program under many schedules and shrinks the first failing run.
///
///     auto found = explore({.num_ranks = 8, .schedule = {.kind = ScheduleKind::kPct}}, /*num_schedules=*/1000, run);
///     if (found.failure) replay(*found.failure);
namespace accel::sim {

/// One run, identified by everything that determines it.
struct Trial {
  int num_ranks = 1;
  std::int64_t max_steps = 0;  // 0: as many as the program has
  bool has_steps = true;       // false: the number of steps cannot be limited
  RankSchedule schedule = {};
  std::vector<int> faults = {};  // indices of the plan's faults that are injected
};

/// Runs a trial and returns a signature of its failure, equal for equal failures; "" if it succeeded.
using RunTrial = std::function<std::string(const Trial& trial)>;

struct Exploration {
  std::int64_t num_schedules = 0;  // number of schedules run, including the failing one
  std::optional<Trial> failure;    // shrunk
  std::string signature;
};

/// Runs `first` under the schedules of consecutive seeds, starting with its own, until one fails. Then reduces the
/// ranks, the faults and the steps, in this order, as long as the failure stays the same.
Exploration explore(const Trial& first, std::int64_t num_schedules, const RunTrial& run);

/// Returns the smallest trial found that fails with the same signature as `failing`.
Trial shrink(Trial failing, const std::string& signature, const RunTrial& run);

}  // namespace accel::sim
