#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/world.hpp"

/// Ranks of an elastic training whose processes have ended and are started anew, as the faults of the plan say.
///
///     if (!newcomers.wait_for_start(rank)) throw;                     // a rank whose process has ended
///     if (!newcomers.may_complete(step, num_changes)) next_world();   // each of the others, at the end of a step
///
/// Thread rule: `wait_for_start` the rank's thread, the others any thread.
namespace accel::sim {

class Newcomers {
 public:
  /// `faults`: null: none.
  Newcomers(World& world, FaultModel* faults) : world_(world), faults_(faults) {}

  /// Waits until the rank's process is started anew. False: its process has not ended, or it is not started.
  bool wait_for_start(int rank);
  /// Whether a rank that knows `num_changes` changes of processes may complete the training's `step`-th step, from 1.
  /// The first to come starts those whose time has come; then the step counts on no rank, and is repeated with them.
  bool may_complete(std::int64_t step, std::size_t num_changes);
  /// The training has ended: nobody is started any more.
  void close();

 private:
  struct Sleeper {
    FaultModel::ProcessStart start;
    std::shared_ptr<Meeting> meeting;
    bool is_started = false;
  };
  struct Interruption {
    std::int64_t step = 0;        // that is repeated
    std::size_t num_changes = 0;  // known to those that repeat it
  };

  World& world_;
  FaultModel* const faults_;
  Mutex mutex_;
  std::map<int, Sleeper> sleepers_ ACCEL_GUARDED_BY(mutex_);  // by rank
  std::optional<Interruption> interruption_ ACCEL_GUARDED_BY(mutex_);
  std::int64_t completed_ ACCEL_GUARDED_BY(mutex_) = 0;  // by at least one rank
  bool is_closed_ ACCEL_GUARDED_BY(mutex_) = false;
};

}  // namespace accel::sim
