#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>

/// Tensors in the lines of a recording. Thread rule: any thread that may read the tensor.
namespace accel::programs {

inline std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Tensors without elements in memory, such as those of the meta device, have no bits to compare.
inline bool has_bits(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided;
}

}  // namespace accel::programs
