#pragma once

#include <string>

#include "reference/state/rank_context.hpp"

/// Warnings: probable mistakes that are not errors. A rank reports each text once, to standard error; simulated ranks
/// report it as a finding.
///
/// The variable ACCEL_WARNINGS is read at each warning. "ignore": nothing is reported, as with an ACCELERATE_LOG_LEVEL
/// above warning; "error": StateError on the rank that warns, which ends the job; "default". Thread rule: any thread
/// that runs a rank, or none.
namespace accel {

/// Throws ConfigError if ACCEL_WARNINGS has another value.
void warn_once(const RankContext& context, const std::string& text);

/// Warns on the main process, or in a program without ranks.
void warn_once(const std::string& text);

}  // namespace accel
