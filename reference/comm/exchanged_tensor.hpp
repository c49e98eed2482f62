#pragma once

#include <ATen/core/Tensor.h>

namespace accel {

/// Returns a dense tensor of a dtype that backends exchange, with the same memory: `tensor` itself, or its bytes in
/// memory order, shape (n). Thread rule: pure.
at::Tensor as_exchanged(const at::Tensor& tensor);

}  // namespace accel
