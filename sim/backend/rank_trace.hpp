#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/diagnosis/collective_call.hpp"

/// What one rank did, as far as its time depends on it: compute, calls and waits, in their order.
///
///     TraceRecorder recorder(/*num_ranks=*/64, /*cpu_factor=*/1);
///     const auto call = recorder.add_call(recorder.add_group({0, 1, 2, 3}), {.op = Collective::kAllReduce});
///     recorder.add_wait(call);
///     const RankTrace trace = recorder.trace();
///
/// Thread rule: values; a recorder belongs to its rank's thread.
namespace accel::sim {

struct TraceEvent {
  enum class Kind { kCompute, kCall, kWait, kUpdate };
  Kind kind{};
  double seconds = 0;  ///< of compute
  // Of a call:
  int group = -1;  ///< index into RankTrace::groups
  Collective op{};
  std::int64_t bytes = 0;
  int element_bytes = 1;
  int root = -1;   ///< group rank; -1: none
  int source = 0;  ///< of a receive: how many group ranks after its own, modulo the group's size
  /// A receive's send, and a wait's call: index into RankTrace::events. Empty if a receive was never matched.
  std::optional<std::size_t> other = {};
};

struct RankTrace {
  int num_ranks = 1;
  std::vector<std::vector<int>> groups = {};  ///< of the rank, in world ranks
  std::vector<TraceEvent> events = {};
  std::int64_t peak_memory_bytes = 0;  ///< of tensors that existed at a time on the CPU
};

class TraceRecorder {
 public:
  /// `cpu_factor`: seconds of compute per second of processor time; 0 if all compute is added by add_compute.
  TraceRecorder(int num_ranks, double cpu_factor) : cpu_factor_(cpu_factor), trace_{.num_ranks = num_ranks} {
    skip_compute();
  }

  /// Returns the group's index.
  int add_group(std::vector<int> ranks);
  void add_compute(double seconds) { added_ += seconds; }
  /// Returns the call's index.
  std::size_t add_call(int group, const Call& call, int source = 0);
  void match(std::size_t receive, std::size_t send) { trace_.events[receive].other = send; }
  void add_wait(std::size_t call) { add({.kind = TraceEvent::Kind::kWait, .other = call}); }
  /// The end of an optimizer step.
  void add_update() { add({.kind = TraceEvent::Kind::kUpdate}); }
  /// The processor time since the last event was the recorder's own.
  void skip_compute();

  [[nodiscard]] const RankTrace& trace() const { return trace_; }
  [[nodiscard]] std::size_t num_calls() const { return num_calls_; }

 private:
  std::size_t add(TraceEvent event);

  double cpu_factor_, cpu_mark_ = 0, added_ = 0;
  std::size_t num_calls_ = 0;
  RankTrace trace_;
};

}  // namespace accel::sim
