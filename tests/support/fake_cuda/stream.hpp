#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

/// Streams and events of simulated GPUs. Kernels do nothing and copies happen at once, so only collectives take time:
/// a stream is the list of collectives that it still waits for.
namespace accel::testing::fake_cuda {

/// Becomes done once. Thread rule: any thread.
class Completion {
 public:
  void finish();
  void wait();
  [[nodiscard]] bool is_done();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

using Completions = std::vector<std::shared_ptr<Completion>>;

void wait_for(const Completions& completions);
[[nodiscard]] bool are_done(const Completions& completions);

/// Thread rule: any thread.
class Stream {
 public:
  explicit Stream(int device) : device_(device) {}
  [[nodiscard]] int device() const { return device_; }
  void add(const Completions& completions);
  /// What the work of this stream still waits for.
  [[nodiscard]] Completions pending();

 private:
  const int device_;
  std::mutex mutex_;
  Completions pending_;
};

/// Thread rule: any thread.
class Event {
 public:
  explicit Event(int device) : device_(device) {}
  [[nodiscard]] int device() const { return device_; }
  void record(Stream& stream);
  [[nodiscard]] Completions pending();

 private:
  const int device_;
  std::mutex mutex_;
  Completions pending_;
};

/// What any stream of the device still waits for.
[[nodiscard]] Completions pending_on(int device);

/// The stream behind a handle of the CUDA runtime; null is the default stream of the current device.
Stream& stream_of(void* handle);
/// The default stream of a device.
Stream& default_stream(int device);

int current_device();
void set_current_device(int device);
int num_devices();

}  // namespace accel::testing::fake_cuda
