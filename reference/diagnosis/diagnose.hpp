#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/diagnosis/job_state.hpp"

/// Explains what the ranks of a job do: one set of texts for simulated and for real ranks.
///
/// Thread rule: pure.
namespace accel {

/// E.g. "waits in all_reduce #17 of group world (train.cpp:42)".
std::string describe(const RankState& rank);

/// What each rank does, ranks that do the same in one line: "ranks 0-2: waits in all_reduce #17 of group world
/// (train.cpp:42)".
std::string describe(const JobState& job);

/// A collective that all members have joined with calls that differ.
Diagnosis diagnose_difference(const OpenCall& call);
/// Ranks that wait, while no rank can continue.
Diagnosis diagnose_hang(const JobState& job, std::string headline);
/// One call that has taken too long; `headline` says how long.
Diagnosis diagnose_late_call(const JobState& job, std::size_t open_call, std::string headline);

}  // namespace accel
