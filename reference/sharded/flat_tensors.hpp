#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "reference/sharded/unit_plan.hpp"

namespace accel::sharded {

inline std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

/// Elements of a flat tensor, as a tensor that is not a view for autograd: Optimizer::zero_grad calls detach_ on
/// gradients, which views do not allow.
inline at::Tensor elements(const at::Tensor& flat, ElementRange range) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + range.begin, {range.size()}, {1});
}

}  // namespace accel::sharded
