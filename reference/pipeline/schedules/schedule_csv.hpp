#pragma once

#include <iosfwd>

#include "reference/pipeline/schedules/schedule.hpp"

/// Tables of actions as files: a line per rank, a cell per action, as torch.distributed.pipelining reads and writes
/// them, with messages (its format compute_comms) or without (compute_only). Empty cells are gaps in time, and are
/// ignored.
///
///     0F0,0F1,0B0,0B1
///     1F0,1B0,1F1,1B1
///
/// Thread rule: pure, apart from the streams.
namespace accel::pipeline {

/// Reads a schedule. The numbers of stages and micro-batches are one more than the highest in the table. Throws
/// ConfigError, which lists the problems of all cells with their lines, for cells that are no actions, and for a table
/// without actions.
[[nodiscard]] Schedule read_schedule(std::istream& in, const std::string& name);

void write_schedule(std::ostream& out, const Schedule& schedule);

}  // namespace accel::pipeline
