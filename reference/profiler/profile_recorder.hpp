#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/config/plugins/profile_kwargs.hpp"
#include "reference/files/files.hpp"

namespace accel::profiler {

/// An operator, a user-defined range, a kernel, or an allocation or release of memory ("[memory]").
struct ProfileEvent {
  std::string name = {};
  std::uint64_t thread = 0;
  std::int64_t start_ns = 0, duration_ns = 0;
  bool on_device = false;  ///< runs on a GPU
  std::vector<std::vector<std::int64_t>> input_shapes = {};
  std::int64_t flops = 0;
  std::int64_t cpu_bytes = 0;  ///< size of a "[memory]" event; negative if freed
};

struct ProfileTrace {
  std::vector<ProfileEvent> events = {};
  std::function<void(Files& files, const std::string& path)> save;  ///< writes a Chrome trace
};

/// Note [Who can be profiled]
/// LibTorch's main profiler, Kineto, exists once per process: if several threads enable it, the second one to disable
/// it fails. Therefore Kineto records only ranks that are separate processes, including their GPUs. Simulated ranks are
/// threads of one process. Each is recorded by LibTorch's legacy profiler, whose state is thread-local, so its trace
/// contains the CPU work of the rank's own thread. Backward passes run on that thread too (RankScope); loader workers
/// do not. Times are wall times, including the time that a rank waits while other ranks use its core.
class ProfileRecorder {
 public:
  virtual ~ProfileRecorder() = default;
  /// Initializes the profiler ahead of time, so that start() is fast.
  virtual void prepare() = 0;
  virtual void start() = 0;
  virtual ProfileTrace stop() = 0;
  /// Releases a prepared profiler without recording.
  virtual void discard() = 0;
};

/// Creates a recorder of the process. Throws StateError if another recorder of the process exists.
std::unique_ptr<ProfileRecorder> make_process_recorder(const ProfileKwargs& kwargs, bool cuda);
/// Creates a recorder of the calling thread, which runs rank `rank`.
std::unique_ptr<ProfileRecorder> make_thread_recorder(const ProfileKwargs& kwargs, int rank);

}  // namespace accel::profiler
