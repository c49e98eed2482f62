#include <c10/cuda/CUDAFunctions.h>

#include "backends/nccl/gpus.hpp"

namespace accel::nccl {

int num_gpus() { return c10::cuda::device_count(); }

bool is_available() { return num_gpus() > 0; }

}  // namespace accel::nccl
