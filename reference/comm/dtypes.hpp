#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

/// Which dtypes backends exchange, and their names in messages. Thread rule: pure.
namespace accel {

/// PyTorch's name, for example "float32".
std::string_view dtype_name(at::ScalarType dtype);

/// Whether Gloo and NCCL send, gather and reduce the dtype: float16, bfloat16, float32, float64, int8, uint8, int32,
/// int64 and bool.
bool is_exchanged(at::ScalarType dtype);

/// Returns a dense tensor of a dtype that backends exchange, with the same memory: `tensor` itself, or its bytes in
/// memory order, shape (n).
at::Tensor as_exchanged(const at::Tensor& tensor);

}  // namespace accel
