#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_clocks.hpp"
#include "sim/engine/world_options.hpp"

namespace accel::sim {

/// When the members of a collective or message have their results, and how much was moved.
///
/// Thread rule: `set_` methods and `count` from the thread that completes the meeting, `volumes` from any.
class TransferTimes {
 public:
  TransferTimes(const WorldOptions& options, const RankClocks& clocks, bool is_serial)
      : options_(options), clocks_(clocks), is_serial_(is_serial) {}

  /// All have arrived, each delayed by so many seconds (by group rank; empty: none). What FinishTimes throws, passes.
  void set_of_collective(Meeting& meeting, const std::vector<double>& delays) const;

  struct Message {
    int source = -1, destination = -1;    // group ranks
    double sent_at = 0, received_at = 0;  // virtual seconds at which each rank has called
    double late = 0;                      // seconds
  };
  void set_of_message(Meeting& receive, const Message& message) const;

  /// A meeting has been completed.
  void count(const Meeting& meeting);
  /// By operation.
  [[nodiscard]] std::map<std::string, Volume> volumes();

 private:
  // On the wall's clock a delay is slept; a serial schedule has no use for it.
  void sleep(double seconds) const;

  const WorldOptions& options_;
  const RankClocks& clocks_;
  const bool is_serial_;
  Mutex mutex_;
  std::map<std::string, Volume> volumes_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
