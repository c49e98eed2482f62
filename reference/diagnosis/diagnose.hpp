#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
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
/// One call that is wrong on `ranks` (world ranks), for this reason.
Diagnosis diagnose_call(const Call& call, const std::string& group, std::uint64_t sequence, std::vector<int> ranks,
                        const std::string& reason);

/// What one end of a message has: elements, and their dtype as LibTorch names it.
struct MessageEnd {
  std::int64_t elements = 0;
  std::string_view dtype;
};
/// A message whose ends differ. `received`: the call of the rank `receiver`.
Diagnosis diagnose_message(const Call& received, const std::string& group, std::uint64_t sequence, int receiver,
                           const MessageEnd& from, const MessageEnd& to);

/// Two members of an all-to-all that disagree on how much one sends to the other: in rows of one tensor, or in elements
/// if the rows differ in width or the tensors are a list.
struct SplitMismatch {
  int from = 0, to = 0;  ///< group ranks
  std::int64_t sent = 0, expected = 0;
};
/// An all-to-all whose members disagree: at least one mismatch.
Diagnosis diagnose_splits(const OpenCall& call, const std::vector<SplitMismatch>& mismatches);

/// Ranks that wait, while no rank can continue.
Diagnosis diagnose_hang(const JobState& job, std::string headline);
/// One call that has taken too long; `headline` says how long.
Diagnosis diagnose_late_call(const JobState& job, std::size_t open_call, std::string headline);

}  // namespace accel
