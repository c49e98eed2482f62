#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reference/pipeline/schedules/action.hpp"

/// Pipeline schedules: for each rank, the list of its actions in order.
///
///     const auto schedule = with_messages(make_schedule("1f1b", {.stages = 4, .ranks = 4, .micro_batches = 8}));
///     check_schedule(schedule, {}).problems;   // empty
///
/// A stage is a part of the model, numbered from its input. A rank holds one or more stages. Thread rule: pure
/// functions. Source: torch/distributed/pipelining/schedules.py; "Zero Bubble Pipeline Parallelism", arXiv 2401.10241.
namespace accel::pipeline {

struct ScheduleSizes {
  int stages = 1, ranks = 1, micro_batches = 1;
};

/// Adds what is wrong with the sizes of any schedule: numbers below 1, and tables that would be too large.
void check_sizes(const ScheduleSizes& sizes, std::vector<std::string>& problems);

struct Schedule {
  std::string name;
  ScheduleSizes sizes;
  std::vector<std::vector<Action>> actions;  ///< of each rank
};

struct ScheduleKind {
  std::string_view name, summary;
  int default_stages_per_rank;
  /// Adds what is wrong with the sizes.
  void (*check)(const ScheduleSizes& sizes, std::vector<std::string>& problems);
  std::vector<Action> (*actions_of_rank)(const ScheduleSizes& sizes, int rank);
};

/// gpipe, 1f1b, interleaved_1f1b, zb_h1, interleaved_zero_bubble, zbv and dualpipe_v.
[[nodiscard]] const std::vector<ScheduleKind>& schedule_kinds();

/// Throws ArgumentError, which lists all schedules, for a name that is none of them.
[[nodiscard]] const ScheduleKind& schedule_kind(std::string_view name);

/// The schedule without messages. Throws ConfigError, which lists all problems, for an unknown name and for sizes with
/// which the schedule does not exist.
[[nodiscard]] Schedule make_schedule(std::string_view name, const ScheduleSizes& sizes);

/// The rank of each stage, from the actions; -1 for a stage that has none.
[[nodiscard]] std::vector<int> rank_of_stages(const Schedule& schedule);

/// Adds the messages between stages on different ranks to a table whose computations are complete. A send follows what
/// it sends. Its receive follows what the other rank has done by then, so that sends which wait for their receives do
/// not block.
[[nodiscard]] Schedule with_messages(const Schedule& schedule);

/// Whether the table contains messages, as opposed to computations only.
[[nodiscard]] bool has_messages(const Schedule& schedule);

/// Moves each receive directly before the action that needs it.
[[nodiscard]] Schedule with_deferred_receives(const Schedule& schedule);

}  // namespace accel::pipeline
