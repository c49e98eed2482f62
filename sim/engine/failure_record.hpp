#pragma once

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/event_log.hpp"
#include "sim/engine/faults.hpp"

namespace accel::sim {

/// What ended a run, which faults have taken effect, and what was found that did not stop it.
///
/// Thread rule: any thread.
class FailureRecord {
 public:
  explicit FailureRecord(EventLog& log) : log_(log) {}

  /// What ended the run; null if nothing has.
  [[nodiscard]] std::exception_ptr failure() const;
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  void throw_if_failed() const;
  /// False if the run has failed before: the first failure is the run's.
  bool set_failure(const std::exception_ptr& error);

  /// What was diagnosed; none as long as all goes well. A fault that may stop a run is named as the cause.
  [[nodiscard]] std::optional<Diagnosis> diagnosis() const;
  /// Kept unless there is a diagnosis already.
  void add_diagnosis(Diagnosis diagnosis);

  /// A fault has taken effect.
  void note(FaultStrike strike);
  /// A strike of this text that seemed harmless is the reason why the run will fail.
  void blame(const std::string& text);
  [[nodiscard]] std::vector<FaultStrike> strikes() const;
  [[nodiscard]] bool has_strike_that_may_stop() const;

  /// Something that real backends silently accept, and that does not stop the run.
  void warn(std::string finding);
  [[nodiscard]] std::vector<std::string> findings() const;

 private:
  EventLog& log_;
  std::atomic<bool> has_failed_{false};
  mutable Mutex mutex_;
  std::exception_ptr failure_ ACCEL_GUARDED_BY(mutex_);
  std::optional<Diagnosis> diagnosis_ ACCEL_GUARDED_BY(mutex_);
  std::vector<FaultStrike> strikes_ ACCEL_GUARDED_BY(mutex_);
  std::vector<std::string> findings_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
