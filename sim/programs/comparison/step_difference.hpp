#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/ranks/step_recorder.hpp"

/// Where two runs of one program diverge: the first loss and the first parameter that differ.
///
///     if (const auto text = difference_of(lines_of(report.steps), lines_of(other.steps))) std::cerr << *text;
///
/// Thread rule: pure functions.
namespace accel::programs {

/// Formats the records as JSON lines: {"rank":1,"step":3,"loss":"0x1.8p-1"} and
/// {"rank":1,"update":3,"parameters":[["weight","91c2..."]]}.
std::vector<std::string> lines_of(const sim::StepRecords& records);

/// Returns nothing if the lines are equal, else a text such as "rank 1, step 3: the loss is 0.75, but 0.5 when the
/// ranks take turns; the first parameter that differs is weight, after update 3 of rank 0".
std::optional<std::string> difference_of(const std::vector<std::string>& lines,
                                         const std::vector<std::string>& round_robin);

}  // namespace accel::programs
