#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reference/recorder/job_record.hpp"

namespace accel::recorder {

/// The rank for which the others wait.
struct SlowestRank {
  int rank = 0;  ///< world rank: the one that came last most often
  std::string group;
  int num_last = 0, num_collectives = 0;
  std::int64_t late_ns = 0;  ///< when it was last: how long after the first rank it came, the median
};

/// Of the group with the most collectives that all its ranks have joined and that are on record, among the groups that
/// lie on this host. Nothing without such a collective.
std::optional<SlowestRank> slowest_rank(const JobRecord& record);

/// E.g. "slowest: rank 3 came last to 180 of the last 200 collectives of group world, 12.3 ms after the first rank".
std::string describe(const SlowestRank& slowest);

}  // namespace accel::recorder
