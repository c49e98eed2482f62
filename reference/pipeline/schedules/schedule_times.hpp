#pragma once

#include <optional>

#include "reference/pipeline/schedules/schedule.hpp"

/// When each action of a schedule runs, if messages take no time.
///
///     const auto times = times_of(schedule, {{.forward = 1, .backward_weight = 2}}, std::nullopt);
///     times.waits;         // empty, or a deadlock
///     times.bubble;        // the share of the ranks' time in which they wait
///
/// A rank runs its actions in order. A receive does not wait; the computation that needs the message does. A send waits
/// until its receive is posted, or until fewer than `send_capacity` earlier messages to the same rank wait for their
/// receives: with 0 always for its own receive, as NCCL's sends, which have no buffers; without a capacity it never
/// waits. Thread rule: pure.
namespace accel::pipeline {

/// In any unit. A backward that is not split takes the sum of the last two.
struct ActionCosts {
  double forward = 1, backward_input = 1, backward_weight = 1;

  [[nodiscard]] double of(ActionKind kind) const;
};

struct ActionTime {
  double start = 0, end = 0;
};

/// A rank that cannot continue: its next action waits for one of another rank.
struct ActionWait {
  int rank = 0, other_rank = 0;
  Action action, other;
};

struct ScheduleTimes {
  std::vector<std::vector<ActionTime>> times;  ///< of the actions that ran, in the order of the schedule
  std::vector<ActionWait> waits;               ///< of the ranks that cannot continue
  double bubble = 0;  ///< 1 - work / (ranks x time from the first action's start to the last one's end)
};

/// `costs`: of every stage, or one of each. The schedule must have its messages, and be complete (check_schedule).
[[nodiscard]] ScheduleTimes times_of(const Schedule& schedule, const std::vector<ActionCosts>& costs,
                                     std::optional<int> send_capacity);

}  // namespace accel::pipeline
