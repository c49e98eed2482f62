#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "sim/backend/operator_clock.hpp"
#include "sim/backend/step_recorder.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

struct SimulationOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of a collective that a running rank never joins
  RankSchedule schedule = {};                    ///< who runs when; parallel, or one at a time by a seed
  std::shared_ptr<FaultModel> faults = nullptr;  ///< what goes wrong; null: nothing
  FinishTimes finish_times = nullptr;            ///< set: time is virtual, by this model of the network
  double cpu_factor = 0;                         ///< virtual seconds of compute per second of processor time
  OperatorSeconds operator_seconds = nullptr;    ///< or, set, the virtual seconds of each operator
  bool records_times = false;                    ///< on the wall's clock, too
  bool records_spans = false;                    ///< for timelines
  bool logs_events = false;
  bool records_steps = false;  ///< losses, and hashes of parameters
  /// Told once if ranks do not come back from their own code after the run has failed, of what is known by then,
  /// without times; null: it goes to standard error. The run ends when they come back, and not before.
  std::function<void(const struct SimulationReport&)> on_stuck = nullptr;
};

/// What is known of a run that has ended, well or not.
struct SimulationReport {
  std::exception_ptr error = {};  ///< null if all ranks ended well; else a RunError, or a ConfigError of before
  std::optional<Diagnosis> diagnosis = {};
  std::vector<FaultStrike> strikes = {};   ///< injected faults that took effect
  std::vector<std::string> findings = {};  ///< what real backends pass over in silence
  std::vector<std::string> events = {};    ///< JSON lines, if asked for
  std::vector<RankTimes> times = {};       ///< by rank, if time was kept
  std::map<std::string, Volume> volumes = {};
  StepRecords steps = {};  ///< if asked for; of the last start of a run that was started again
};

/// Runs `body` once per simulated rank, each on a thread of its own, with its own context: group, generator, autocast
/// cache. Returns when all ranks have ended, which a rank can put off for ever: nothing ends a thread from outside.
///
///     accel::sim::simulate({.num_ranks = 64}, [](accel::RankContext& rank) { ... });
///
/// std::exit in `body` ends its rank, and fails the run unless the code is 0. Findings go to standard error. Throws
/// RunError (sim/engine/diagnosis.hpp) with the errors of all ranks, ConfigError for an impossible number of ranks.
void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

/// As `simulate`, but tells of failures in its report.
SimulationReport rehearse(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace accel::sim
