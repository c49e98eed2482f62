#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/watch/job_store.hpp"
#include "reference/recorder/host_state.hpp"
#include "reference/recorder/job_watch.hpp"

/// Lets the watches of a job's hosts see all ranks, through the job's store.
///
/// Every host tells its state; the first host whose state is fresh compares them. When calls differ, or nobody has made
/// progress while ranks wait, it asks for the records of all ranks and diagnoses them as on one host. Thread rule: one
/// thread.
namespace accel::recorder {

class HostExchange {
 public:
  /// Every rank of the job constructs one.
  HostExchange(const WatchOptions& options, std::unique_ptr<JobStore> store, std::shared_ptr<JobRecord> record);

  /// By the rank that speaks for its host: tells this host's state, and returns what has been found, on this host or on
  /// another one. A hang that is certain is found by all hosts. Throws if the store is gone or closed.
  std::optional<Hang> exchange();
  /// By the rank that serves the store, some time before it ends while others continue. Any thread.
  void close();
  /// Tells the other hosts why the job has to end, and that this one knows. Any thread.
  void publish(const Diagnosis& ending);
  /// Whether all hosts know why. Any thread.
  [[nodiscard]] bool do_all_know() const;
  /// Whether all ranks of the job have returned from their programs, and no calls differed. Any thread.
  [[nodiscard]] bool have_all_ended() const;

 private:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;
  struct Host {
    int first_rank = 0, num_local = 0;
    std::optional<HostState> state = {};
    std::string text = {};  // of the state
    Clock::time_point changed_at = {};
  };

  struct Request {
    std::string name;
    std::string differing_group;  // "": nobody makes progress
    milliseconds idle{};
    Clock::time_point made_at, first_made_at;  // the second: of those for the same difference
  };

  [[nodiscard]] std::optional<std::string> value_of(const std::string& key) const;
  [[nodiscard]] bool find_hosts();
  void tell_state();
  void read_state(Host& host);
  void answer_request();
  [[nodiscard]] bool compares();
  std::optional<Hang> compare();
  void request_records(Request request);
  std::optional<Hang> diagnose_records();
  [[nodiscard]] std::shared_ptr<JobRecord> take_records();
  std::optional<Hang> diagnose_difference_in(const std::shared_ptr<JobRecord>& all, const Request& request);
  /// Since a rank of any host has made progress; absent while a host is silent.
  [[nodiscard]] std::optional<milliseconds> idle_time() const;
  [[nodiscard]] std::string stamp() const;

  const WatchOptions options_;
  std::unique_ptr<JobStore> store_;
  std::shared_ptr<JobRecord> record_;
  std::vector<Host> hosts_;
  std::uint64_t count_ = 0;     // of states that were told
  std::uint64_t progress_ = 0;  // of this host
  Clock::time_point changed_at_ = Clock::now();
  std::string answered_;  // the last request
  std::optional<Request> request_;
  std::string looked_at_;  // the stamp of the last diagnosis
  milliseconds next_suspicion_;
};

}  // namespace accel::recorder
