#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

/// Hashes of what a rank computes with, for comparing ranks or runs. See fingerprint.hpp for their quality.
///
///     if (fingerprint(mine) != fingerprint(yours)) ...   // other bits
///
/// Thread rule: any thread that may read the tensor or the generator.
namespace accel {

/// Hashes the elements. Tensors on a device are copied to the CPU first.
std::uint64_t fingerprint(const at::Tensor& tensor);

/// Hashes up to 64 pieces of the elements: finds a change of an entire tensor, and in small tensors any change. 0 if
/// the tensor is not in the CPU's memory, or has gaps.
std::uint64_t sample_fingerprint(const at::Tensor& tensor);

/// Hashes everything that `get_state` returns. Expects a CPU generator.
std::uint64_t fingerprint(const at::Generator& generator);

}  // namespace accel
