#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/engine/collective_call.hpp"

namespace accel::sim {

/// A waiting rank and the call it waits in.
struct Waiting {
  int rank = 0;
  std::string op;
  std::string group;
  std::uint64_t sequence = 0;
  std::string where;  // "file:line"; "" if unknown
};

/// The first call at which the ranks diverged: what each of them called.
struct Difference {
  struct Side {
    std::vector<int> ranks;
    std::string call;  // the call; for ranks that have not called, what they do
    std::string where;
  };
  std::string group;
  std::uint64_t sequence = 0;
  std::vector<Side> sides;
};

/// Why a simulated run ended: a hang, calls or replicas that differ, a wrong use of a tensor, a time-out, or an
/// injected fault.
struct Diagnosis {
  enum class Kind { kNone, kHang, kDesync, kTimeout, kRankFailure, kFault };

  Kind kind = Kind::kNone;
  std::string fault;       // the injected fault that caused it; "" if none
  std::vector<int> ranks;  // culprits: ranks that are missing or differ from the majority; all on a tie
  std::string op;
  std::string group;
  std::uint64_t sequence = 0;  // from 0 in the group; for a message, per sender and receiver
  std::vector<std::vector<std::int64_t>> shapes;
  std::string where;  // of the call, "file:line"
  std::optional<Difference> first_difference;
  std::vector<Waiting> waiting;
  std::string text;  // human-readable; names every rank
};

/// Fills in the call that the diagnosis is about: operation, group, number, shapes and line.
void name_call(Diagnosis& diagnosis, const Call& call, const std::string& group, std::uint64_t sequence);

/// Thrown on every rank when the simulator has diagnosed a hang or a desync.
class DiagnosedError : public CommError {
 public:
  explicit DiagnosedError(Diagnosis diagnosis) : CommError(diagnosis.text), diagnosis_(std::move(diagnosis)) {}
  [[nodiscard]] const Diagnosis& diagnosis() const { return diagnosis_; }

 private:
  Diagnosis diagnosis_;
};

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
