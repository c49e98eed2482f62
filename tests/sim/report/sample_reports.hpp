#pragma once

#include "sim/report/check_report.hpp"
#include "sim/report/comparison_report.hpp"
#include "sim/report/run_report.hpp"

/// Sample reports of runs.
namespace accel::testing {

/// A report with everything that a report can hold. Rank `num_ranks / 3` is slow.
sim::RunReport full_report(int num_ranks, int num_steps);
/// A report whose loss is NaN at step 40 and from step 60 on.
sim::RunReport diverged_report();
/// A report of a run in which a rank did not arrive.
sim::RunReport hung_report();
/// A report of one program on 1 to 1,024 ranks without any other data.
sim::RunReport sweep_report();
/// A report whose texts have a meaning in HTML, in every field that holds text.
sim::RunReport hostile_report();

/// Comparisons of two runs on two ranks.
sim::ComparisonReport equal_runs();
sim::ComparisonReport different_runs();

/// Checks of a program with a failure of every kind.
sim::CheckReport failed_checks();

}  // namespace accel::testing
