#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/engine/call.hpp"

namespace accel::sim {

/// One rank that waits, and for what.
struct Waiting {
  int rank = 0;
  std::string call;   // described
  std::string group;
  std::uint64_t sequence = 0;
};

/// Why a simulated run could not go on. Made at the moment when every rank is blocked, or when calls that met differ.
struct Diagnosis {
  enum class Kind { kHang, kDesync, kTimeout };

  Kind kind = Kind::kHang;
  std::vector<int> ranks;  // the culprits: those that did not arrive, or that differ from the majority; all on a tie
  std::string op;
  std::string group;
  std::uint64_t sequence = 0;  // counts from 0 in the group
  std::vector<Waiting> waiting;
  std::string text;  // for a person; names every rank
};

/// Thrown on every rank when the simulator has diagnosed a hang or a desync.
class DiagnosedError : public CommError {
 public:
  explicit DiagnosedError(Diagnosis diagnosis) : CommError(diagnosis.text), diagnosis_(std::move(diagnosis)) {}
  [[nodiscard]] const Diagnosis& diagnosis() const { return diagnosis_; }

 private:
  Diagnosis diagnosis_;
};

/// Thrown on the ranks that wait, or call, after another rank has failed.
class ReleasedError : public CommError {
 public:
  using CommError::CommError;
};

/// How one rank of a failed run ended. `message` is empty if it ended well.
struct RankOutcome {
  int rank = 0;
  std::string message;
  std::exception_ptr error;
  bool released = false;  // it was freed because another rank failed
};

/// Thrown by `run_ranks`: the errors of all ranks, the causes first, in one message.
class RunError : public Error {
 public:
  explicit RunError(std::vector<RankOutcome> outcomes);
  [[nodiscard]] const std::vector<RankOutcome>& outcomes() const { return outcomes_; }
  /// The diagnosis, if the run ended in one, else null.
  [[nodiscard]] const Diagnosis* diagnosis() const;

 private:
  std::vector<RankOutcome> outcomes_;
};

}  // namespace accel::sim
