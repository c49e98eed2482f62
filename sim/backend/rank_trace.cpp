#include "sim/backend/rank_trace.hpp"

#include <utility>

#include "sim/engine/rank_clocks.hpp"

namespace accel::sim {
int TraceRecorder::add_group(std::vector<int> ranks) {
  trace_.groups.push_back(std::move(ranks));
  return static_cast<int>(trace_.groups.size()) - 1;
}

std::size_t TraceRecorder::add_call(int group, const Call& call, int source) {
  ++num_calls_;
  return add({.kind = TraceEvent::Kind::kCall,
              .group = group,
              .op = call.op,
              .bytes = call.bytes,
              .element_bytes = call.element_bytes,
              .root = call.root,
              .source = source});
}

void TraceRecorder::skip_compute() {
  if (cpu_factor_ > 0) cpu_mark_ = thread_processor_seconds();
}

// Compute since the last event comes before this one.
std::size_t TraceRecorder::add(TraceEvent event) {
  auto seconds = std::exchange(added_, 0.0);
  if (cpu_factor_ > 0) seconds += cpu_factor_ * (thread_processor_seconds() - cpu_mark_);
  if (seconds > 0) trace_.events.push_back({.kind = TraceEvent::Kind::kCompute, .seconds = seconds});
  trace_.events.push_back(event);
  skip_compute();
  return trace_.events.size() - 1;
}

}  // namespace accel::sim
