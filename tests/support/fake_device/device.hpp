#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

/// A device whose memory is host memory and whose operators are LibTorch's CPU kernels, so that its numbers are the
/// CPU's to the bit. It is LibTorch's device type PrivateUse1. Streams and events order nothing, because everything
/// runs at once; race_detector.hpp reports work that would be unordered on a GPU. Copies to the host that do not block
/// really happen when the host waits, as late as a GPU may.
///
///     auto weights = torch::rand({3}).to(fake_device::device(0));
///
/// Thread rule: any thread; current device and stream are per thread.
namespace accel::testing::fake_device {

constexpr int kNumDevices = 64;

[[nodiscard]] c10::Device device(int index);
[[nodiscard]] c10::Stream current_stream(int index);

/// Counts of this process since `clear_counts`.
struct Counts {
  std::int64_t host_waits = 0;       ///< the host waited for a stream or an event, or for a value
  std::int64_t pageable_copies = 0;  ///< between the device and host memory that is not pinned
  std::int64_t operators = 0;
};
[[nodiscard]] Counts counts();
void clear_counts();

/// Limits the bytes of each device; 0 means no limit.
void set_memory_limit(std::int64_t bytes);
[[nodiscard]] std::int64_t used_bytes(int index);

}  // namespace accel::testing::fake_device
