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

/// The time of each rank: virtual seconds by a model of costs, or wall seconds; and what the rank does with it.
///
/// Thread rule: methods that name a rank from its thread, `step` from any, `times` of a run that has ended.
class RankClocks {
 public:
  RankClocks(const WorldOptions& options, RankScheduler& scheduler);

  /// What the rank does from here on: "forward", "backward", ...; static storage. Returns what it did before.
  std::string_view enter_phase(int rank, std::string_view phase);
  [[nodiscard]] std::string_view phase(int rank) const { return ranks_[rank].phase; }
  /// The compute of the rank since its last call is not the program's.
  void leave_out(int rank) { begin_compute(rank); }
  /// The rank has computed for so many virtual seconds.
  void advance(int rank, double seconds) { ranks_[rank].advanced += seconds; }
  /// The rank does nothing for a while: on the virtual clock, or on the wall's; in a serial schedule others go first.
  void delay(int rank, double seconds, std::string_view name);
  /// Virtual seconds of the rank.
  [[nodiscard]] double now(int rank) const { return ranks_[rank].times.now; }
  /// The rank's micro-batch, by its backward passes; -1 before the first.
  [[nodiscard]] std::int64_t step(int rank) const { return ranks_[rank].step; }
  [[nodiscard]] const RankTimes& times(int rank) const { return ranks_[rank].times; }

  // --- for the engine: the stretch of compute before a call ends, and the next begins ---
  void end_compute(int rank);
  void begin_compute(int rank);
  void begin_backward(int rank) { ++ranks_[rank].step; }
  void end_update(int rank);
  /// The time at which the rank joins a collective; null where no time is kept.
  [[nodiscard]] std::optional<double> ready(int rank) const;
  struct Reading {
    double now = 0, wall = 0;
  };
  [[nodiscard]] Reading read(int rank) const;
  /// The rank has waited for `meeting` since `begin`.
  void record_wait(int rank, const Meeting& meeting, const Reading& begin);
  /// So many virtual seconds pass on every rank. All are blocked or have left.
  void advance_all(double seconds);
  [[nodiscard]] double wall_now() const;

 private:
  struct alignas(64) Rank {  // its own thread's only, and others' after the run
    RankTimes times;
    std::string_view phase = "start";
    double cpu_mark = 0, wall_mark = 0;
    std::atomic<std::int64_t> step{-1};  // micro-batch
    double advanced = 0;                 // virtual seconds since the last call
  };

  void record_spans(int rank, const Meeting& meeting, const Reading& begin);

  const WorldOptions& options_;
  RankScheduler& scheduler_;
  std::vector<Rank> ranks_;
};

}  // namespace accel::sim
