#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

/// Hashes of what a rank computes with, for comparing ranks or runs. See fingerprint.hpp for their quality.
///
///     if (fingerprint(mine) != fingerprint(yours)) ...   // other bits
///
/// Thread rule: any thread that may read the tensor or the generator.
namespace accel::sim {

/// Hashes the elements. Tensors on a device are copied to the CPU first.
std::uint64_t fingerprint(const at::Tensor& tensor);

/// Hashes everything that `get_state` returns. Expects a CPU generator.
std::uint64_t fingerprint(const at::Generator& generator);

}  // namespace accel::sim
