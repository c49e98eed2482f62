#pragma once

#include "sim/report/run_report.hpp"

/// Reports of runs as they might have been.
namespace accel::testing {

/// Everything that a report can hold. Rank `num_ranks / 3` is slow.
sim::RunReport full_report(int num_ranks, int num_steps);
/// Step 40 gives NaN, and so do all from step 60 on.
sim::RunReport diverged_report();
/// A rank did not come.
sim::RunReport hung_report();
/// One program on 1 to 1,024 ranks, and nothing else.
sim::RunReport sweep_report();
/// Text that means something else in HTML, wherever a report takes text.
sim::RunReport hostile_report();

}  // namespace accel::testing
