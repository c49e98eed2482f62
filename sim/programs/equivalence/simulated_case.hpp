#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/backend/simulate.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/programs/equivalence/observe_case.hpp"

namespace accel::programs {

/// What the ranks observe, by rank.
using RankObservations = std::vector<Observations>;

/// What every rank observes last if the run of a case fails: ranks wait forever, make different calls, throw alone, or
/// continue with different epochs. No case is allowed to fail like this.
inline constexpr const char* kFailed = "the run failed: ";
[[nodiscard]] bool has_failed(const RankObservations& seen);

/// Runs the stages of a case. `run_stage` runs the body on so many ranks and returns the error that ended the run, or
/// "".
using RunStage = std::function<std::string(int ranks, const std::function<void(RankContext&)>& body)>;
RankObservations observe_stages(const EquivalenceCase& one, const RunStage& run_stage);

/// Runs a case on simulated ranks, whose number is the case's. If the run fails, every rank's last observation is that
/// failure.
RankObservations observe_on_simulated_ranks(const EquivalenceCase& one, sim::SimulationOptions options = {});

/// A schedule that runs one rank at a time, in an order that the case's seed determines.
sim::RankSchedule serial_schedule_of(const EquivalenceCase& one);

/// Whether two observations are equal, or are losses and parameters that differ by rounding only, as they do if three
/// or more ranks add their gradients in another order.
bool equal_up_to_rounding(const std::string& left, const std::string& right);

/// Describes the first rank and observation in which two runs of a case differ; "" if they are equal. `left` and
/// `right` name the two backends.
std::string first_difference(
    const std::string& left, const RankObservations& of_left, const std::string& right,
    const RankObservations& of_right,
    const std::function<bool(const std::string&, const std::string&)>& equal = std::equal_to<std::string>());

}  // namespace accel::programs
