#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/diagnosis/collective_call.hpp"

namespace accel {

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

/// Why a run ended: a hang, calls or replicas that differ, a wrong use of a tensor, a time-out, or an injected fault.
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

/// Thrown on every rank when a hang or a desync has been diagnosed.
class DiagnosedError : public CommError {
 public:
  explicit DiagnosedError(Diagnosis diagnosis) : CommError(diagnosis.text), diagnosis_(std::move(diagnosis)) {}
  [[nodiscard]] const Diagnosis& diagnosis() const { return diagnosis_; }

 private:
  Diagnosis diagnosis_;
};

}  // namespace accel
