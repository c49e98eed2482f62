#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/engine/collective_call.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/group.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"

namespace accel::sim {

/// Changes the tensors of one member of a collective as a fault requires.
using Corrupt = std::function<void(const Participant&, const Corruption&)>;

/// Seconds, by group rank, at which each member has its part of a collective that it could begin at `ready`. Of a
/// message: the group is {sender, receiver}, under a name of this pair.
using FinishTimes = std::function<std::vector<double>(const Group&, const Call&, std::span<const double> ready)>;

/// Called once if ranks do not return from their own code after the run has failed; the run waits for them all the
/// same. From the thread of run_ranks, with the error that it would throw.
using OnStuck = std::function<void(const RunError&)>;

struct WorldOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // Gloo's default; a running rank may take that long
  RankSchedule schedule = {};
  FinishTimes finish_times = nullptr;        // set: time is virtual
  std::vector<RankTimes> times_before = {};  // of a run that is restarted, by rank: its clocks continue from there
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  double cpu_factor = 0;       // virtual seconds of compute per second of a rank's processor time
  bool records_times = false;  // of ranks, and volumes; with virtual time, spans or faults always
  bool records_spans = false;
  bool logs_events = false;
  std::shared_ptr<FaultModel> faults = nullptr;
  Corrupt corrupt = nullptr;
  OnStuck on_stuck = nullptr;  // null: the error goes to standard error

  [[nodiscard]] bool is_virtual() const { return finish_times != nullptr; }
  [[nodiscard]] bool keeps_time() const { return is_virtual() || records_times || records_spans || faults != nullptr; }
};

}  // namespace accel::sim
