#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/process/link.hpp"
#include "backends/process/operation.hpp"
#include "sim/collectives/tensors/host_tensor.hpp"
#include "sim/engine/rank_calls.hpp"
#include "sim/programs/processes/divided_weights.hpp"
#include "sim/programs/processes/rank_threads.hpp"
#include "sim/programs/processes/write_faults.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/rehearse_ranks.hpp"

namespace accel::programs {

/// Stands for one rank that is a process: makes the calls that the process asks for, on the rank's thread, so that the
/// engine sees the rank as a thread.
///
///     RankProxy proxy(simulated, area);
///     proxy.run();       // until the process has ended; throws the error that ended it
///
/// A call never blocks the proxy: the process may have several collectives in flight. A wait blocks it if all threads
/// of the process wait. While one does not, the proxy serves its requests, and blocks only after the thread has been
/// idle for a while. Thread rule: the rank's thread, except `continue_if_possible`.
class RankProxy {
 public:
  /// `processor_seconds` receives what the process has used at each of its requests. `was_stopped` tells whether the
  /// process was ended because the run had failed. `reason` is why the supervisor ended it before that; "" if it did
  /// not.
  RankProxy(const sim::SimulatedRank& simulated, std::shared_ptr<process::SharedArea> area, DividedWeights& weights,
            double& processor_seconds, std::function<bool()> was_stopped, std::function<std::string()> reason);

  void run();
  /// Sleeps in a collective until it has ended, or a thread of the process that does not wait goes on. The process gets
  /// its answer from the thread that ends the collective, so this one need not wake for it: it sleeps on until the
  /// process has another request.
  void sleep(const sim::Completion& completion);
  /// Called when no rank can continue. Returns true if this one can, because its process has sent a request or a thread
  /// of it runs. Any thread.
  bool continue_if_possible();

 private:
  struct Pending {
    sim::StartedCall<sim::HostTensor> started;
    bool is_sparse = false;
    std::exception_ptr error = nullptr;  // of the call
    sim::LastCall call = {};
  };
  // A thread of the process waits.
  struct Wait {
    std::uint64_t number = 0;
    Pending pending;
    process::Sender sender;
    sim::OpenWait begun = {};
    std::atomic<bool> is_answered{false};
  };

  void serve(process::MessageReader& message);
  std::optional<std::int64_t> answer_of(const process::RequestHead& head, process::MessageReader& message);
  void make_group(process::MessageReader& message);
  void call(process::MessageReader& message);
  sim::StartedCall<sim::HostTensor> start(const process::Operation& operation);
  void begin_wait(std::uint64_t number);
  void end_waits();
  void end_wait(Wait& wait);
  void finish(Wait& wait);
  [[nodiscard]] bool has_wait_ended() const;
  void rest();
  void block(bool is_idle);
  bool end_rest();
  void abandon_waits();
  process::Answer failed_answer(const std::exception_ptr& error);
  [[nodiscard]] static std::int64_t value_of(const Pending& pending);
  void give_sum(process::MessageReader& message);
  void report_touch(process::MessageReader& message);
  void divide(process::MessageReader& message);
  void warn(process::MessageReader& message);
  void compare_replicas(process::MessageReader& message);
  [[noreturn]] void fail(const std::string& text);
  void end_as(int status) const;
  [[nodiscard]] sim::HostTensor tensor_of(const process::PlacedTensor& placed) const;
  [[nodiscard]] std::vector<sim::HostTensor> tensors_of(const std::vector<process::PlacedTensor>& list) const;

  const sim::SimulatedRank& simulated_;
  process::ProxyLink link_;
  DividedWeights& weights_;
  WriteFaults writes_;
  double& processor_seconds_;
  const std::function<bool()> was_stopped_;
  const std::function<std::string()> reason_;
  std::map<std::uint32_t, sim::GroupMember<sim::HostTensor>> groups_;
  std::map<std::uint64_t, Pending> pending_;
  std::map<std::uint64_t, sim::HostTensor> sparse_sums_;  // of works that have ended, until the process takes them
  RankThreads threads_;
  std::vector<std::shared_ptr<Wait>> waits_;
  std::vector<sim::RankWait> engine_waits_;  // the same for the engine, while the rank rests
  std::vector<pid_t> waiting_;               // the same for threads_; written under mutex_
  bool is_resting_ = false;                  // in the engine
  std::mutex mutex_;
  std::shared_ptr<sim::Completion> rest_;  // ends when one of several waits ends; null: the rank does not rest on it
  bool is_idle_ = false;                   // while it rests: a thread does not wait, but was idle
  std::exception_ptr thrown_;              // the last error that the process was told
  std::string thrown_text_;
};

}  // namespace accel::programs
