#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "backends/watch/host_exchange.hpp"
#include "reference/recorder/job_watch.hpp"

/// Watches the ranks of a job whose launcher does not: under torchrun, mpirun and srun, and on several machines.
///
/// Every rank has a watch, a separate thread. Of each host, the first rank that lives speaks: it publishes why the
/// job has to end, and prints who may only be slow. Then the ranks that wait for others end with that error, and after
/// a grace period the watch ends those that do not.
///
/// Thread rule: construct and destroy it on one thread.
namespace accel::recorder {

/// From ACCEL_HANG_SECONDS and ACCEL_ON_HANG, as the flags of accel launch. Throws ConfigError.
WatchOptions watch_options();

class RankWatch {
 public:
  /// `store`: of the job, used if it has other hosts.
  RankWatch(const WatchOptions& options, std::shared_ptr<JobRecord> record, int rank, const JobStore& store);

  /// After the rank has returned from its program. Waits until the ranks of other hosts have too, a few seconds at
  /// most, if they could not learn of this end later. Throws DiagnosedError if the job has to end meanwhile.
  void finish();
  /// After the rank's program has failed. `is_own`: not because of another rank. Tells the other hosts.
  void fail(const char* message, bool is_own);

 private:
  void run(const std::stop_token& stop);
  std::optional<Hang> look();
  std::optional<Hang> look_at_hosts();
  void act_on(const Hang& hang);
  void publish(const Diagnosis& ending);
  void close();
  [[nodiscard]] bool is_store_gone() const;
  [[nodiscard]] bool speaks() const;

  std::shared_ptr<JobRecord> record_;
  const int rank_;
  const bool store_ends_with_rank_0_;
  std::unique_ptr<HostExchange> exchange_;  // null: there is one host
  std::atomic<bool> can_exchange_;
  JobWatch watch_;       // of one host
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace accel::recorder
