#pragma once

#include <memory>

#include "backends/recorded/recorded_backend.hpp"

namespace accel::nccl {

/// Notes in the rank's record which collectives its GPU waits for and when each has ended. A thread looks every
/// millisecond while there are any. What is queued while a CUDA graph is captured is not noted.
std::shared_ptr<recorder::GpuWaits> watch_gpu(std::shared_ptr<recorder::RankRecorder> recorder, c10::Device device);

}  // namespace accel::nccl
