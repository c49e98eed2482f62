#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <string_view>

/// Which dtypes backends exchange, and their names in messages. Thread rule: pure.
namespace accel {

/// PyTorch's name, for example "float32".
std::string_view dtype_name(c10::ScalarType dtype);

/// Whether Gloo and NCCL send, gather and reduce the dtype: float16, bfloat16, float32, float64, int8, uint8, int32,
/// int64 and bool.
bool is_exchanged(c10::ScalarType dtype);

bool is_floating(c10::ScalarType dtype);
bool is_complex(c10::ScalarType dtype);
/// Also true for bool.
bool is_integer(c10::ScalarType dtype);

}  // namespace accel
