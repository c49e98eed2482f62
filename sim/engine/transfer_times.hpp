#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_clocks.hpp"
#include "sim/engine/world_options.hpp"

namespace accel::sim {

/// Computes when the members of a collective or message have their results, and counts how much was moved.
///
/// Thread rule: call `set_` methods and `count` from the thread that completes the meeting, `volumes` from any thread.
class TransferTimes {
 public:
  TransferTimes(const WorldOptions& options, const RankClocks& clocks, bool is_serial)
      : options_(options), clocks_(clocks), is_serial_(is_serial) {}

  /// Sets the times of a collective that all have joined, each delayed by these seconds (by group rank; empty:
  /// none). Passes on what FinishTimes throws.
  void set_of_collective(Meeting& meeting, const std::vector<double>& delays) const;

  struct Message {
    int source = -1, destination = -1;    // group ranks
    double sent_at = 0, received_at = 0;  // virtual seconds at which each rank called
    double late = 0;                      // seconds
  };
  void set_of_message(Meeting& receive, const Message& message) const;
  /// For a send that waited until a receive was posted at that virtual time.
  void set_of_send(Meeting& send, double received_at) const;

  /// Counts a completed meeting.
  void count(const Meeting& meeting);
  /// Returns the volumes by operation.
  [[nodiscard]] std::map<std::string, Volume> volumes();

 private:
  // Sleeps on the wall clock; does nothing in a serial schedule, where sleeping would only delay all ranks alike.
  void sleep(double seconds) const;

  const WorldOptions& options_;
  const RankClocks& clocks_;
  const bool is_serial_;
  Mutex mutex_;
  std::map<std::string, Volume> volumes_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
