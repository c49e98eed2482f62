#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/diagnosis/job_state.hpp"
#include "reference/recorder/job_record.hpp"

namespace accel::recorder {

/// What a launcher knows of the end of a rank's process.
struct ProcessEnd {
  bool has_ended = false;
  std::string detail = {};  ///< "it was killed by signal 9 (Killed)"; "" after exit code 0
};

/// What the ranks of this host do, as far as their record shows.
struct JobView {
  JobState job;
  std::vector<int> stuck = {};      ///< world ranks that wait for each other, or for ranks that have left
  std::vector<int> waiting = {};    ///< world ranks with a thread that waits in a call which others have not joined
  std::vector<int> elsewhere = {};  ///< world ranks that are alive and wait in no such call
  std::uint64_t progress = 0;       ///< differs if a rank has made a call, begun a wait or ended one
};

/// Reads the record of a job while its ranks write it: never waits, and takes what changes meanwhile as not yet there.
///
/// Thread rule: one thread.
class JobReader {
 public:
  explicit JobReader(std::shared_ptr<JobRecord> record) : record_(std::move(record)) {}

  /// `ends`: by local rank; empty: all processes live.
  [[nodiscard]] JobView view(const std::vector<ProcessEnd>& ends = {}) const;
  /// The collective whose calls differ, as far as the ranks have joined it; absent without a verdict.
  [[nodiscard]] std::optional<OpenCall> condemned_call() const;

 private:
  std::shared_ptr<JobRecord> record_;
};

/// Why the calls of a collective differ: in their arguments, or in the splits of an all-to-all.
Diagnosis diagnose_condemned(const JobRecord& record, OpenCall call);
/// The same of the condemned collective, once all ranks of this host have joined it, or after a second at most.
Diagnosis await_difference(const std::shared_ptr<JobRecord>& record);

/// What the kernel says of a local rank's process: "it sleeps"; "" if it is gone.
std::string process_state(const JobRecord& record, int world_rank);
/// Adds that of the ranks that wait for no other rank.
void add_process_states(const JobRecord& record, JobView& view);

/// Differs if a rank has made a call, begun a wait or ended one.
std::uint64_t progress_of(const JobRecord& record);

/// What the kernel says of the local ranks' processes. An exit code is not known: it belongs to the launcher.
std::vector<ProcessEnd> ends_of_processes(const JobRecord& record);
/// False also for a rank that has not started.
bool has_process_ended(const JobRecord& record, int world_rank);
/// Whether the process has neither ended nor been stopped.
bool is_able_to_run(pid_t pid);

/// The record that a process has open: a launcher or a rank of the same user. Throws ConfigError if there is none.
std::shared_ptr<JobRecord> record_of_process(pid_t pid);

/// The place of a recorded call, and the call itself; absent if it has been overwritten.
std::optional<CallPlace> place_at(const RankRecord& rank, std::uint64_t position);
std::optional<Call> call_at(const RankRecord& rank, std::uint64_t position);

}  // namespace accel::recorder
