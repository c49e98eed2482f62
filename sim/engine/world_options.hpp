#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reference/diagnosis/collective_call.hpp"
#include "sim/engine/checks.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/group.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/run_error.hpp"
#include "sim/engine/scheduling/completion.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"

namespace accel::sim {

/// Applies an injected corruption to the tensors of one member of a collective.
using Corrupt = std::function<void(const Participant&, const Corruption&)>;

/// Returns, by group rank, the time in seconds at which each member has its result of a collective that it
/// could begin at `ready`. For a message the group is {sender, receiver}, under a name unique to this pair.
using FinishTimes = std::function<std::vector<double>(const EngineGroup&, const Call&, std::span<const double> ready)>;

/// Called once if ranks do not return from their own code after the run has failed; the run still waits for
/// them. Runs on the thread of run_ranks, with the error that run_ranks would throw.
using OnStuck = std::function<void(const RunError&)>;

/// Returns how much processor time a rank has used; called on its thread.
using ProcessorSeconds = std::function<double(int rank)>;

/// Called when no rank can continue. Returns true if it has ended the completion of a rank that can: one whose process
/// has a request, or a thread that runs. Any thread.
using ContinueRank = std::function<bool()>;

struct WorldOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // Gloo's default; a running rank may take as long
  RankSchedule schedule = {};
  CheckLevels checks = {};
  std::optional<int> send_capacity =
      {};  // messages from one rank to another that may wait for their receives; nullopt: any
  FinishTimes finish_times = nullptr;        // set: time is virtual
  std::vector<RankTimes> times_before = {};  // by rank; a restarted run continues its clocks
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  double cpu_factor = 0;                         // virtual seconds of compute per second of a rank's processor time
  ProcessorSeconds processor_seconds = nullptr;  // null: the clock of the rank's thread
  SleepUntilEnded sleep = nullptr;  // how threads of ranks sleep in a parallel schedule; null: until they are woken
  ContinueRank continue_rank = nullptr;  // null: a blocked rank cannot continue
  bool records_times = false;            // implied by virtual time, spans and faults
  bool records_spans = false;
  bool logs_events = false;
  std::shared_ptr<FaultModel> faults = nullptr;
  Corrupt corrupt = nullptr;
  OnStuck on_stuck = nullptr;  // null: prints the error to standard error

  [[nodiscard]] bool is_virtual() const { return finish_times != nullptr; }
  [[nodiscard]] bool keeps_time() const { return is_virtual() || records_times || records_spans || faults != nullptr; }
};

}  // namespace accel::sim
