#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace accel {

/// Blocks the host until `device` has done what this thread's current stream has been given. Does nothing for the CPU.
void wait_for(c10::Device device);

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
  /// Work that the current stream is given from now on begins after the copies. The host does not wait.
  void join() const;
  [[nodiscard]] const c10::Stream& stream() const { return stream_; }

 private:
  c10::Stream stream_;
};

/// The memory of `tensor`, which belongs to another stream, is not given to another tensor before the current stream
/// has done what it is given until `tensor` is released.
void use_on_current_stream(const at::Tensor& tensor);

}  // namespace accel
