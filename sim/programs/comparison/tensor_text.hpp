#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/comm/fingerprint.hpp"
#include "reference/comm/tensor_fingerprint.hpp"

/// Tensors in the lines of a recording. Thread rule: any thread that may read the tensor.
namespace accel::programs {

inline std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Tensors without elements in memory, such as those of the meta device, have no bits to compare.
inline bool has_bits(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided;
}

/// One hash of the bits of all that have some.
inline std::string hash_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint64_t> hashes;
  for (const auto& tensor : tensors) {
    if (has_bits(tensor)) hashes.push_back(fingerprint(tensor));
  }
  return hex(fingerprint(hashes.data(), hashes.size() * sizeof(std::uint64_t)));
}

/// nullopt for types of numbers without a norm.
inline std::optional<double> norm_of(const at::Tensor& tensor) {
  if (tensor.is_complex() || tensor.is_quantized()) return std::nullopt;
  return tensor.to(at::kCPU, at::kDouble).norm().item<double>();
}

}  // namespace accel::programs
