#pragma once

#include <nccl.h>

#include <cstddef>

namespace accel::testing::fake_cuda {

/// Reduces `count` elements of `from` into `to`. A mean is summed here and divided at the end.
void accumulate(char* to, const char* from, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction);
void divide(char* values, std::size_t count, ncclDataType_t type, int divisor);

}  // namespace accel::testing::fake_cuda
