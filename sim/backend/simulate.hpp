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
#include "sim/collectives/collective_plan.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

class ReplicaComparison;
struct Member;

struct SimulationOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< for a collective that a running rank never joins
  RankSchedule schedule = {};                                    ///< parallel, or one rank at a time in a seeded order
  std::shared_ptr<FaultModel> faults = nullptr;                  ///< injected faults; null: none
  Library library = Library::kGloo;            ///< the backend that is rehearsed: which tensors it accepts
  FinishTimes finish_times = nullptr;          ///< set: time is virtual and follows this network model
  double cpu_factor = 0;                       ///< virtual seconds of compute per second of processor time
  OperatorSeconds operator_seconds = nullptr;  ///< set: virtual seconds per operator, replaces cpu_factor
  bool records_times = false;                  ///< also on the wall clock
  bool records_spans = false;                  ///< for timelines
  bool logs_events = false;
  bool records_steps = false;  ///< losses, and hashes of parameters
  /// Sets the device of a rank, on the rank's thread, until the result is destroyed there; ranks may share a device.
  /// Null: ranks compute on the CPU.
  std::function<std::shared_ptr<void>(RankContext&)> place = nullptr;
  /// Called once if ranks do not return from their own code after the run has failed, with what is known by then,
  /// without times; null: prints to standard error. The run ends only when all ranks have returned.
  std::function<void(const struct SimulationReport&)> on_stuck = nullptr;
  ProcessorSeconds processor_seconds = nullptr;  ///< of a rank, for `cpu_factor`; null: those of its thread
  SleepUntilEnded sleep = nullptr;               ///< how threads of ranks sleep in a parallel schedule
};

/// The result of a run, successful or not.
struct SimulationReport {
  std::exception_ptr error = {};  ///< null: success; else a RunError, or a ConfigError from before the start
  std::optional<Diagnosis> diagnosis = {};
  std::vector<AppliedFault> strikes = {};  ///< injected faults that took effect
  std::vector<std::string> findings = {};  ///< problems that real backends silently ignore
  std::vector<std::string> events = {};    ///< JSON lines, if recorded
  std::vector<RankTimes> times = {};       ///< by rank, if time was kept
  std::map<std::string, Volume> volumes = {};
  StepRecords steps = {};  ///< if recorded; of the last attempt of a restarted run
};

/// Runs `body` once per simulated rank, each on its own thread with its own context: group, generator, autocast cache.
/// Returns when all ranks have ended. A rank that never returns blocks it forever: nothing ends a thread from outside.
///
///     accel::sim::simulate({.num_ranks = 64}, [](accel::RankContext& rank) { ... });
///
/// std::exit in `body` ends its rank and fails the run unless the code is 0. Prints findings to standard error. Throws
/// RunError (sim/engine/diagnosis.hpp) with the errors of all ranks, ConfigError for an invalid number of ranks.
void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

/// Like `simulate`, but returns failures in its report instead of throwing.
SimulationReport rehearse(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

/// What one rank's thread holds of a simulation.
struct SimulatedRank {
  const Member& member;
  const std::shared_ptr<ReplicaComparison>& comparison;
  const std::shared_ptr<StepRecorder>& recorder;  ///< null: steps are not recorded
  FaultModel* faults = nullptr;                   ///< null: nothing goes wrong
  int restart_count = 0;
};

/// Like `rehearse`, for a body that stands for a rank whose program runs elsewhere.
SimulationReport rehearse_ranks(const SimulationOptions& options,
                                const std::function<void(const SimulatedRank&)>& body);

}  // namespace accel::sim
