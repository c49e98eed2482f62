#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

/// Returns a 64-bit hash that always differs if exactly one bit differs, and almost surely otherwise. Runs at memory
/// speed. Do not store it: the value is comparable on one machine only.
std::uint64_t fingerprint(const void* data, std::size_t num_bytes);

}  // namespace accel
