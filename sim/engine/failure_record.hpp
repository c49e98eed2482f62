#pragma once

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/event_log.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/run_error.hpp"

namespace accel::sim {

/// What ended a run, which faults have taken effect, and which findings did not stop it.
///
/// Thread rule: any thread.
class FailureRecord {
 public:
  explicit FailureRecord(EventLog& log) : log_(log) {}

  /// Returns the error that ended the run; null if none has.
  [[nodiscard]] std::exception_ptr failure() const;
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  void throw_if_failed() const;
  /// Records the run's failure. Returns false if it has already failed: the first failure counts.
  bool set_failure(const std::exception_ptr& error);

  /// Returns the diagnosis, if there is one. If a fault that may stop a run has struck, it is named as the cause.
  [[nodiscard]] std::optional<Diagnosis> diagnosis() const;
  /// Adds a diagnosis unless there is one already.
  void add_diagnosis(Diagnosis diagnosis);

  /// Records that a fault has taken effect.
  void note(AppliedFault strike);
  /// Marks the strike with this text, which seemed harmless, as the reason why the run will fail.
  void blame(const std::string& text);
  [[nodiscard]] std::vector<AppliedFault> strikes() const;
  [[nodiscard]] bool has_strike_that_may_stop() const;

  /// Adds a finding, which does not stop the run.
  void warn(std::string finding);
  [[nodiscard]] std::vector<std::string> findings() const;

 private:
  EventLog& log_;
  std::atomic<bool> has_failed_{false};
  mutable Mutex mutex_;
  std::exception_ptr failure_ ACCEL_GUARDED_BY(mutex_);
  std::optional<Diagnosis> diagnosis_ ACCEL_GUARDED_BY(mutex_);
  std::vector<AppliedFault> strikes_ ACCEL_GUARDED_BY(mutex_);
  std::vector<std::string> findings_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
