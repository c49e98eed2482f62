#pragma once

#include <string>
#include <vector>

#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/programs/equivalence/observe_case.hpp"

namespace accel::programs {

/// What the ranks observe, by rank.
using RankObservations = std::vector<Observations>;

/// Runs a case on simulated ranks. If the run fails, every rank's last observation is that failure.
RankObservations observe_on_simulated_ranks(const EquivalenceCase& one, const sim::RankSchedule& schedule);

/// A schedule that runs one rank at a time, in an order that the case's seed determines.
sim::RankSchedule serial_schedule_of(const EquivalenceCase& one);

/// Describes the first rank and observation in which two runs of a case differ; "" if they are equal. `left` and
/// `right` name the two backends.
std::string first_difference(const std::string& left, const RankObservations& of_left, const std::string& right,
                             const RankObservations& of_right);

}  // namespace accel::programs
