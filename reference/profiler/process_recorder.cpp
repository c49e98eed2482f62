// Recorder for ranks that are processes, based on Kineto. See Note [Who can be profiled].
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/profiler/profile_recorder.hpp"

namespace accel::profiler {
namespace {

namespace torch_profiler = torch::autograd::profiler;

// Process-wide, because the Kineto profiler that it guards is process-wide too.
std::atomic<bool> is_taken = false;

// ProfilerResult::save works only once; further files are copies of the first. LibTorch writes the file itself and not
// through `Files`, so the atomic replacement is done here.
void save_once(torch_profiler::ProfilerResult& result, std::string& saved, Files& files, const std::string& path) {
  if (saved.empty()) {
    result.save(path + ".tmp");
    files.rename(path + ".tmp", path);
    saved = path;
  } else if (saved != path) {
    write_atomically(files, path, files.read(saved));
  }
}

class ProcessRecorder final : public ProfileRecorder {
 public:
  ProcessRecorder(const ProfileKwargs& kwargs, bool cuda)
      : config_(torch_profiler::ProfilerState::KINETO, kwargs.record_shapes, kwargs.profile_memory,
                /*with_stack=*/false, kwargs.with_flops) {
    check_state(
        !is_taken.exchange(true),
        "profile: another rank of this process is already being profiled, and LibTorch has one profiler per process; "
        "profile only one rank per process, or use the simulator, which records each rank separately");
    activities_ = {torch_profiler::ActivityType::CPU};
    if (cuda) activities_.insert(torch_profiler::ActivityType::CUDA);
  }
  ~ProcessRecorder() override { is_taken = false; }

  void prepare() override { torch_profiler::prepareProfiler(config_, activities_); }
  void start() override { torch_profiler::enableProfiler(config_, activities_); }
  ProfileTrace stop() override {
    const std::shared_ptr<torch_profiler::ProfilerResult> result = torch_profiler::disableProfiler();
    ProfileTrace trace;
    for (const auto& event : result->events()) trace.events.push_back(event_of(event));
    trace.save = [result, saved = std::make_shared<std::string>()](Files& files, const std::string& path) {
      save_once(*result, *saved, files, path);
    };
    return trace;
  }
  // Kineto has no call that cancels a prepared profiler, so it is started and stopped.
  void discard() override {
    start();
    torch_profiler::disableProfiler();
  }

 private:
  // Copies the fields that reports use, so that both recorders return the same type.
  static ProfileEvent event_of(const torch_profiler::KinetoEvent& event) {
    ProfileEvent copy{.name = event.name(),
                      .thread = event.startThreadId(),
                      .start_ns = static_cast<std::int64_t>(event.startNs()),
                      .duration_ns = static_cast<std::int64_t>(event.durationNs()),
                      .on_device = event.deviceType() != c10::DeviceType::CPU,
                      .flops = static_cast<std::int64_t>(event.flops())};
    if (event.hasShapes()) copy.input_shapes = event.shapes().vec();
    if (copy.name == "[memory]" && !copy.on_device) copy.cpu_bytes = event.nBytes();
    return copy;
  }

  torch_profiler::ProfilerConfig config_;
  std::set<torch_profiler::ActivityType> activities_;
};

}  // namespace

std::unique_ptr<ProfileRecorder> make_process_recorder(const ProfileKwargs& kwargs, bool cuda) {
  return std::make_unique<ProcessRecorder>(kwargs, cuda);
}

}  // namespace accel::profiler
