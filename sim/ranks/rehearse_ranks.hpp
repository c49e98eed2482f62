#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/collectives/collective_plan.hpp"
#include "sim/engine/checks.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/run_error.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/engine/world.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/step_recorder.hpp"

namespace accel {
struct RankContext;
}

namespace accel::sim {

class Newcomers;
class ReplicaComparison;

/// Returns the virtual seconds of one operator, e.g. "aten::addmm", given its floating-point operations and the bytes
/// of its inputs.
using OperatorSeconds = std::function<double(std::string_view name, double flops, double bytes)>;

struct SimulationOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< for a collective that a running rank never joins
  RankSchedule schedule = {};                                    ///< parallel, or one rank at a time in a seeded order
  CheckLevels checks = {};                                       ///< what ends the run, and what is a finding
  std::shared_ptr<FaultModel> faults = nullptr;                  ///< injected faults; null: none
  /// Messages from one rank to another that may wait for their receives before a wait for a send blocks: 0 as NCCL's
  /// sends, which have no buffers; nullopt: any number, as Gloo's small ones.
  std::optional<int> send_capacity = {};
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
  ContinueRank continue_rank = nullptr;          ///< null: a blocked rank cannot continue
};

/// The result of a run, successful or not.
struct SimulationReport {
  std::exception_ptr error = {};  ///< null: success; else a RunError, or a ConfigError from before the start
  std::optional<Diagnosis> diagnosis = {};
  std::vector<AppliedFault> strikes = {};  ///< injected faults that took effect
  std::vector<std::string> findings = {};  ///< what checks have found that does not end the run
  std::vector<std::string> events = {};    ///< JSON lines, if recorded
  std::vector<RankTimes> times = {};       ///< by rank, if time was kept
  std::map<std::string, Volume> volumes = {};
  StepRecords steps = {};  ///< if recorded; of the last attempt of a restarted run

  /// Reports what a check has found in a run that has ended well: an error, a finding or nothing, by the check's level.
  void add(const CheckLevels& levels, Check check, const std::string& text);
};

/// What the thread of one rank holds of a simulation.
struct SimulatedRank {
  const Member& member;
  const std::shared_ptr<ReplicaComparison>& comparison;
  const std::shared_ptr<StepRecorder>& recorder;  ///< null: steps are not recorded
  const std::shared_ptr<Newcomers>& newcomers;
  FaultModel* faults = nullptr;  ///< null: nothing goes wrong
  int restart_count = 0;
};

/// Runs `body` once per rank, each on its own thread. For a body that stands for a rank whose program runs elsewhere;
/// programs on threads run by `rehearse` (sim/backend/simulate.hpp).
SimulationReport rehearse_ranks(const SimulationOptions& options,
                                const std::function<void(const SimulatedRank&)>& body);

}  // namespace accel::sim
