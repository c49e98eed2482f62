#pragma once

#include <vector>

#include "reference/recorder/call_log.hpp"
#include "sim/report/timeline/timeline.hpp"

namespace accel::programs {

/// The timeline of a real job, as the simulator's: what each rank communicated, when it waited and for whom, and what
/// it did in between. Times count from the first call. `calls`: by world rank; ranks of other hosts have none. Calls
/// whose end is not known are left out. Thread rule: pure.
sim::Timeline timeline_of(const std::vector<std::vector<recorder::LoggedCall>>& calls);

}  // namespace accel::programs
