#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace accel {

/// The stream of a device on which this thread's work is queued.
c10::Stream current_stream(c10::Device device);

/// Blocks the host until the work queued on this thread's current stream of `device` is complete. Does nothing for the
/// CPU.
void wait_for(c10::Device device);

/// Work of a device that was recorded once, such as a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues the work on the current stream. It reads and writes the memory of the tensors that were recorded.
  virtual void replay() = 0;
};

/// A stream of a device beside the current one, for copies from the host that run while the device computes.
///
///     SideStream copies(device);
///     const auto batch = copies.copy(host.pin_memory());
///     copies.join();
///     model(batch);  // on the current stream
///
/// Thread rule: one thread at a time.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  /// Begins a copy to the device, without waiting if `tensor` is pinned. The result is used after `join`.
  [[nodiscard]] at::Tensor copy(const at::Tensor& tensor) const;
  /// Makes later work on the current stream wait for the copies. The host does not wait.
  void join() const;
  [[nodiscard]] const c10::Stream& stream() const { return stream_; }

 private:
  c10::Stream stream_;
};

/// Keeps the memory of `tensor`, which was allocated on another stream, from being reused after its release until the
/// work queued on the current stream by then is complete.
void record_on_current_stream(const at::Tensor& tensor);

}  // namespace accel
