#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

/// Hashes that tell tensors of one machine apart. Thread rule: pure functions.
namespace accel::process {

/// Mixes words into four lanes, as FNV does with bytes: runs at memory speed.
std::uint64_t byte_hash(const void* data, std::size_t bytes);

/// Hashes up to 64 pieces of the elements, from the first to the last: finds a change of an entire tensor, and in small
/// tensors any change. Expects a tensor of the CPU; 0 if it has gaps.
std::uint64_t sample_hash(const at::Tensor& tensor);

}  // namespace accel::process
