#pragma once

namespace accel::predict {

enum class AttentionKernel { kUnfused, kFlash1, kFlash2, kCudnn };

}  // namespace accel::predict
