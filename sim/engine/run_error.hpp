#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/diagnosis/diagnosis.hpp"

namespace accel::sim {

/// Thrown on ranks that wait or make a call after another rank has failed.
class ReleasedError : public CommError {
 public:
  using CommError::CommError;
};

/// What real Gloo throws on a rank whose peer is gone or late. Not an accel::Error: it comes from below the
/// library, which adds the rank and the call to it, as it does for Gloo's own errors.
class GlooError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The process of a rank has ended before its program, or is started anew; the others know it after a while.
struct ProcessChange {
  int rank = 0;
  double notice_seconds = 0;  // virtual
  bool is_start = false;
};
/// Whether the rank's process runs after these changes.
bool runs_after(const std::vector<ProcessChange>& changes, int rank);

/// Returns "Connection closed by peer", the error that ranks see when another rank's process ends.
std::exception_ptr connection_closed(int rank);

/// How one rank of a failed run ended. `message` is empty if it ended without an error.
struct RankOutcome {
  int rank = 0;
  std::string message;
  std::exception_ptr error;
  bool released = false;  // released because another rank failed
};

/// Thrown by `run_ranks`: the errors of all ranks in one message, the causes first.
class RunError : public Error {
 public:
  RunError(std::vector<RankOutcome> outcomes, std::optional<Diagnosis> diagnosis);
  [[nodiscard]] const std::vector<RankOutcome>& outcomes() const { return outcomes_; }
  /// Returns the diagnosis, if the run ended in one or a fault ended it; else null.
  [[nodiscard]] const Diagnosis* diagnosis() const { return diagnosis_ ? &*diagnosis_ : nullptr; }

 private:
  std::vector<RankOutcome> outcomes_;
  std::optional<Diagnosis> diagnosis_;
};

}  // namespace accel::sim
