#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/engine/collective_call.hpp"

namespace accel::sim {

/// One rank that waits, and for what.
struct Waiting {
  int rank = 0;
  std::string op;
  std::string group;
  std::uint64_t sequence = 0;
  std::string where;  // "file:line", "" where it is not known
};

/// The first call at which ranks went apart: what each of them called.
struct Difference {
  struct Side {
    std::vector<int> ranks;
    std::string call;  // described, or where the ranks are that have not called
    std::string where;
  };
  std::string group;
  std::uint64_t sequence = 0;
  std::vector<Side> sides;
};

/// Why a simulated run could not go on. Made at the moment when every rank is blocked, or when calls that met differ.
struct Diagnosis {
  enum class Kind { kNone, kHang, kDesync, kTimeout, kRankFailure, kFault };

  Kind kind = Kind::kNone;
  std::string fault;       // the injected fault that caused it, "" if none did
  std::vector<int> ranks;  // the culprits: those that did not arrive, or that differ from the majority; all on a tie
  std::string op;
  std::string group;
  std::uint64_t sequence = 0;  // counts from 0 in the group; a message's, from this sender to this receiver
  std::vector<std::vector<std::int64_t>> shapes;
  std::string where;  // of the call, "file:line"
  std::optional<Difference> first_difference;
  std::vector<Waiting> waiting;
  std::string text;  // for a person; names every rank
};

/// Names the call that it is about, by operation, group, number, shapes and line.
void name_call(Diagnosis& diagnosis, const Call& call, const std::string& group, std::uint64_t sequence);

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

/// What real Gloo throws on a rank whose peer is gone or late. Not an accel::Error: it comes from below the library,
/// which adds the rank and the call to it as it does with Gloo's own.
class GlooError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "Connection closed by peer", as ranks see the end of another's process.
std::exception_ptr connection_closed(int rank);

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
  RunError(std::vector<RankOutcome> outcomes, std::optional<Diagnosis> diagnosis);
  [[nodiscard]] const std::vector<RankOutcome>& outcomes() const { return outcomes_; }
  /// The diagnosis, if the run ended in one or a fault ended it, else null.
  [[nodiscard]] const Diagnosis* diagnosis() const { return diagnosis_ ? &*diagnosis_ : nullptr; }

 private:
  std::vector<RankOutcome> outcomes_;
  std::optional<Diagnosis> diagnosis_;
};

}  // namespace accel::sim
