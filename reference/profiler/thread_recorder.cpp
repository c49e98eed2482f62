// Recorder for simulated ranks, based on LibTorch's legacy profiler, whose state is thread-local. See Note [Who
// can be profiled]. The legacy profiler has no exporter for separate threads, so the trace is written here.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include <algorithm>

#include "reference/profiler/profile_recorder.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::profiler {
namespace {

namespace torch_profiler = torch::autograd::profiler;

std::int64_t nanoseconds_of(const torch_profiler::LegacyEvent& event) {
  return static_cast<std::int64_t>(event.cpuUs() * 1000);
}

// The events of a thread are starts and ends of ranges, properly nested. A range that is still open when the recording
// ends gets the time of the last event as its end.
std::vector<ProfileEvent> paired(std::vector<torch_profiler::LegacyEvent>& list) {
  std::vector<ProfileEvent> events;
  std::vector<std::size_t> open;
  for (auto& event : list) {
    switch (event.kind()) {
      case torch_profiler::EventKind::PushRange:
        open.push_back(events.size());
        events.push_back({.name = event.name(),
                          .thread = event.threadId(),
                          .start_ns = nanoseconds_of(event),
                          .input_shapes = event.shapes(),
                          .flops = static_cast<std::int64_t>(event.flops())});
        break;
      case torch_profiler::EventKind::PopRange:
        if (open.empty()) break;  // the range started before the recording
        events[open.back()].duration_ns = nanoseconds_of(event) - events[open.back()].start_ns;
        open.pop_back();
        break;
      case torch_profiler::EventKind::MemoryAlloc:
        events.push_back({.name = "[memory]",
                          .thread = event.threadId(),
                          .start_ns = nanoseconds_of(event),
                          .cpu_bytes = event.cpuMemoryUsage()});
        break;
      default: break;
    }
  }
  const auto end = list.empty() ? 0 : nanoseconds_of(list.back());
  for (const auto index : open) events[index].duration_ns = end - events[index].start_ns;
  return events;
}

std::string shapes_text(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::vector<std::string> texts;
  for (const auto& shape : shapes) texts.push_back(fmt::format("[{}]", fmt::join(shape, ", ")));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

// The Trace Event Format of chrome://tracing and Perfetto, with Kineto's names of arguments, so that tools for Kineto's
// traces also read these. Times are in microseconds.
std::string chrome_trace(const std::vector<ProfileEvent>& events, int rank) {
  std::string text = fmt::format(
      R"({{"schemaVersion": 1, "distributedInfo": {{"rank": {}}}, "displayTimeUnit": "ms", "traceEvents": [)", rank);
  text += fmt::format(
      "\n{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"tid\": 0, \"args\": {{\"name\": \"rank {0}\"}}}}",
      rank);
  for (const auto& event : events) {
    const bool is_memory = event.name == "[memory]";
    std::string arguments = is_memory ? fmt::format("\"Bytes\": {}", event.cpu_bytes) : "";
    if (!event.input_shapes.empty()) arguments += "\"Input Dims\": " + shapes_text(event.input_shapes);
    if (event.flops > 0) arguments += fmt::format("{}\"flops\": {}", arguments.empty() ? "" : ", ", event.flops);
    text += fmt::format(
        ",\n{{\"ph\": \"{}\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, {}\"args\": "
        "{{{}}}}}",
        is_memory ? "i" : "X", is_memory ? "cpu_instant_event" : "cpu_op",
        tracking::json_text(std::string_view(event.name)), rank, event.thread,
        static_cast<double>(event.start_ns) / 1e3,
        is_memory ? std::string() : fmt::format("\"dur\": {:.3f}, ", static_cast<double>(event.duration_ns) / 1e3),
        arguments);
  }
  return text + "\n]}\n";
}

class ThreadRecorder final : public ProfileRecorder {
 public:
  ThreadRecorder(const ProfileKwargs& kwargs, int rank)
      : config_(torch_profiler::ProfilerState::CPU, kwargs.record_shapes, kwargs.profile_memory, /*with_stack=*/false,
                kwargs.with_flops),
        rank_(rank) {}

  // Nothing to prepare: the legacy profiler starts without delay.
  void prepare() override {}
  void start() override { torch_profiler::enableProfilerLegacy(config_); }
  // The legacy profiler returns one list of events per thread that has recorded.
  ProfileTrace stop() override {
    ProfileTrace trace;
    for (auto& list : torch_profiler::disableProfilerLegacy()) {
      auto events = paired(list);
      std::move(events.begin(), events.end(), std::back_inserter(trace.events));
    }
    trace.save = [events = trace.events, rank = rank_](Files& files, const std::string& path) {
      write_atomically(files, path, chrome_trace(events, rank));
    };
    return trace;
  }
  void discard() override {}

 private:
  torch_profiler::ProfilerConfig config_;
  int rank_;
};

}  // namespace

std::unique_ptr<ProfileRecorder> make_thread_recorder(const ProfileKwargs& kwargs, int rank) {
  return std::make_unique<ThreadRecorder>(kwargs, rank);
}

}  // namespace accel::profiler
