#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/config/profile_kwargs.hpp"
#include "reference/core/files.hpp"

namespace accel::profiler {

/// An operator, a range that a program named, a kernel, or memory ("[memory]") that was allocated or freed.
struct ProfileEvent {
  std::string name = {};
  std::uint64_t thread = 0;
  std::int64_t start_ns = 0, duration_ns = 0;
  bool on_device = false;  ///< of a GPU
  std::vector<std::vector<std::int64_t>> input_shapes = {};
  std::int64_t flops = 0;
  std::int64_t cpu_bytes = 0;  ///< of "[memory]"; negative where freed
};

struct ProfileTrace {
  std::vector<ProfileEvent> events = {};
  std::function<void(Files& files, const std::string& path)> save;  ///< as a Chrome trace
};

/// Note [Who can be profiled]
/// LibTorch's profiler proper, Kineto, is one for the process: of three threads that enable it, the second to disable
/// it finds it gone. So a rank that is a process of its own is recorded by Kineto, with GPUs. Simulated ranks are
/// threads of one process: each is recorded by LibTorch's older profiler, whose state is the thread's, and its trace
/// has what the rank's own thread did, on the CPU. Backward passes run there too (RankScope); loaders' workers do not.
/// Times are the machine's, with what a rank waits while others have its core.
class ProfileRecorder {
 public:
  virtual ~ProfileRecorder() = default;
  /// Makes the start quick.
  virtual void prepare() = 0;
  virtual void start() = 0;
  virtual ProfileTrace stop() = 0;
  /// Gives up what was prepared.
  virtual void discard() = 0;
};

/// Of the process. Throws StateError if another records it already.
std::unique_ptr<ProfileRecorder> make_process_recorder(const ProfileKwargs& kwargs, bool cuda);
/// Of the calling thread, as rank `rank`.
std::unique_ptr<ProfileRecorder> make_thread_recorder(const ProfileKwargs& kwargs, int rank);

}  // namespace accel::profiler
