#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/recorder/job_record.hpp"

/// Compares what the ranks of an all-to-all send and expect: the elements, as Gloo does. The simulator compares rows
/// and shapes too.
namespace accel::recorder {

/// A rank's call of a collective.
struct MemberCall {
  const RankRecord& rank;
  std::uint64_t position = 0;  ///< of the RecordedCall
  int member = 0;              ///< group rank
};
/// Nothing if they agree, if the call is no all-to-all, or if one of the calls is no longer on record.
std::optional<SplitMismatch> mismatch_of(const MemberCall& from, const MemberCall& to);

/// Of all members on this host that have joined the collective.
std::vector<SplitMismatch> split_mismatches(const JobRecord& record, const std::string& group, std::uint64_t sequence);

}  // namespace accel::recorder
