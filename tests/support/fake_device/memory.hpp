#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "tests/support/fake_device/race_detector.hpp"

/// The device's caching allocator: a freed block is given out again at once, to the stream that it was allocated on, as
/// CUDA's does. A block that other streams were recorded on waits until the host knows that they are done with it.
/// Thread rule: any thread.
namespace accel::testing::fake_device {

c10::Allocator& allocator();
c10::Allocator& pinned_allocator();  ///< of host memory that copies need not pass through another buffer
bool is_pinned(const void* data);
/// The stream on which a tensor's memory was allocated. Throws c10::Error if it is not the device's.
StreamKey stream_of_memory(const at::Tensor& tensor);
/// A block given back later is not used again before `stream` has done what it was given until then.
void record_on_stream(const void* data, StreamKey stream);

}  // namespace accel::testing::fake_device
