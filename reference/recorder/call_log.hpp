#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/recorder/job_record.hpp"

namespace accel::recorder {

/// A call of a rank. Times are nanoseconds of CLOCK_MONOTONIC.
struct LoggedCall {
  Collective op{};
  std::string group;
  std::int64_t sequence = 0;  ///< in its group; of a message, for its two ranks
  std::int64_t bytes = 0;     ///< contributed by this rank
  std::int64_t begin_ns = 0;
  std::int64_t wait_ns = 0;  ///< since when the rank has waited for its end; 0: never
  std::int64_t end_ns = 0;   ///< 0: the rank did not see it, or the record no longer shows it
};

/// Collects the calls of the ranks of this host while they run, since the record keeps the last ones only.
///
///     CallLog log(record);
///     while (job_runs) { ...; log.collect(); }   // at least once in recorder::kCalls calls of a rank
///
/// Thread rule: one thread.
class CallLog {
 public:
  explicit CallLog(std::shared_ptr<JobRecord> record);

  /// Forgets everything, for another attempt of the job.
  void clear();
  void collect();
  /// By world rank; without those of other hosts. In the order of the calls.
  [[nodiscard]] const std::vector<std::vector<LoggedCall>>& calls() const { return calls_; }
  /// Number of calls that were overwritten before they were collected.
  [[nodiscard]] std::uint64_t num_missed() const { return num_missed_; }

 private:
  struct Pending {
    std::uint64_t position = 0;
    std::size_t index = 0;  // in calls_
  };
  void collect_new(int rank);
  void collect_ends(int rank);

  std::shared_ptr<JobRecord> record_;
  std::vector<std::vector<LoggedCall>> calls_;
  std::vector<std::uint64_t> positions_;       // by world rank: of the last call that was collected
  std::vector<std::vector<Pending>> pending_;  // by world rank: calls that had not ended
  std::uint64_t num_missed_ = 0;
};

}  // namespace accel::recorder
