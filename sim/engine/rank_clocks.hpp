#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/engine/meeting.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/world_options.hpp"

namespace accel::sim {

class RankScheduler;

/// Processor time of the calling thread.
double thread_processor_seconds();

/// The clock of each rank, in virtual seconds (by a cost model) or wall seconds, and the records of how it was spent.
///
/// Thread rule: call methods that accept a rank from its thread, `step` from any thread, `times` after the run.
class RankClocks {
 public:
  RankClocks(const WorldOptions& options, RankScheduler& scheduler);

  /// Sets what the rank does from now on: "forward", "backward", ...; static storage. Returns the previous phase.
  std::string_view enter_phase(int rank, std::string_view phase);
  [[nodiscard]] std::string_view phase(int rank) const { return ranks_[rank].phase; }
  /// Discards the rank's compute time since its last call, which was the simulator's own work.
  void discard_compute(int rank) { begin_compute(rank); }
  /// Adds virtual seconds of compute.
  void advance(int rank, double seconds) { ranks_[rank].advanced += seconds; }
  /// Delays the rank on the virtual or the wall clock; in a serial schedule other ranks run first.
  void delay(int rank, double seconds, std::string_view name);
  /// Returns the rank's virtual time in seconds.
  [[nodiscard]] double now(int rank) const { return ranks_[rank].times.now; }
  /// Returns the rank's micro-batch, counted by its backward passes; -1 before the first.
  [[nodiscard]] std::int64_t step(int rank) const { return ranks_[rank].step; }
  [[nodiscard]] const RankTimes& times(int rank) const { return ranks_[rank].times; }

  // --- for the engine: a call ends one interval of compute and begins the next ---
  void end_compute(int rank);
  void begin_compute(int rank);
  void begin_backward(int rank) { ++ranks_[rank].step; }
  void end_update(int rank);
  /// Returns the time at which the rank joins a collective; null if no time is kept.
  [[nodiscard]] std::optional<double> ready(int rank) const;
  struct Reading {
    double now = 0, wall = 0;
  };
  [[nodiscard]] Reading read(int rank) const;
  /// Records that the rank has waited for `meeting` since `begin`.
  void record_wait(int rank, const Meeting& meeting, const Reading& begin);
  /// Advances the virtual clock of every rank. All ranks are blocked or have left.
  void advance_all(double seconds);
  [[nodiscard]] double wall_now() const;

 private:
  struct alignas(64) Rank {  // used by the rank's thread; by others only after the run
    RankTimes times;
    std::string_view phase = "start";
    double cpu_mark = 0, wall_mark = 0;
    std::atomic<std::int64_t> step{-1};  // micro-batch
    double advanced = 0;                 // virtual seconds since the last call
  };

  [[nodiscard]] double processor_seconds(int rank) const;
  void record_spans(int rank, const Meeting& meeting, const Reading& begin);

  const WorldOptions& options_;
  RankScheduler& scheduler_;
  std::vector<Rank> ranks_;
};

}  // namespace accel::sim
