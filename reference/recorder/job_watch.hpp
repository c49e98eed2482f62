#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/job_record.hpp"

/// Watches the ranks of this machine through the record of their calls, without taking part in any.
///
///     JobWatch watch({.hang_after = 60s}, JobRecord::create({.world_size = 4, .num_local = 4}));
///     start_ranks(watch.record().descriptor());
///     if (const auto hang = watch.look(ends)) ...   // now and then
///
/// Thread rule: one thread.
namespace accel::recorder {

struct WatchOptions {
  std::chrono::milliseconds hang_after = std::chrono::seconds(60);  ///< of a rank that may only be slow
  bool stops_on_suspicion = false;
};

/// What the watch has seen.
struct Hang {
  Diagnosis diagnosis;
  bool is_suspected = false;  ///< a rank may only be slow
  bool ends_job = true;
};

/// Why an attempt has failed.
struct Explanation {
  std::optional<Diagnosis> diagnosis = {};  ///< of calls that differ, or of ranks that waited for one that had ended
  std::optional<int> culprit = {};          ///< the rank that failed on its own
  std::vector<int> released = {};           ///< the ranks that failed because others had ended
};

/// Of ranks that can never continue.
Diagnosis diagnose_stuck(const JobView& view);
/// Of ranks that wait for one that may only be slow. `idle`: how long.
Diagnosis diagnose_waiting(const JobView& view, std::chrono::milliseconds idle);

class JobWatch {
 public:
  using Ends = std::vector<ProcessEnd>;  // by local rank

  JobWatch(const WatchOptions& options, std::shared_ptr<JobRecord> record);

  [[nodiscard]] const JobRecord& record() const { return *record_; }
  /// Before the ranks of another attempt start.
  void begin_attempt();
  /// Returns why the job has to end, if another watch has published it. If all ranks are on this machine, finds calls
  /// that differ and ranks that can never continue, at once, and a suspicion when the ranks have done nothing for
  /// `hang_after`, twice as long, four times as long and so on.
  std::optional<Hang> look(const std::function<Ends()>& ends);
  /// What every rank of this machine does.
  [[nodiscard]] std::string whereabouts(const Ends& ends) const;
  /// Before the ranks are stopped, after some have failed; `first_failed`: the first of them.
  [[nodiscard]] Explanation explain(const Ends& ends, int first_failed) const;
  /// The error that has ended a rank and that it has not printed, because another rank caused it; "" if there is none.
  [[nodiscard]] std::string message_of(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;

  WatchOptions options_;
  std::shared_ptr<JobRecord> record_;
  JobReader reader_;
  std::uint64_t progress_ = 0;
  Clock::time_point changed_at_ = Clock::now(), looked_at_ = {};
  std::chrono::milliseconds next_suspicion_{};
};

}  // namespace accel::recorder
