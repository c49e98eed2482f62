#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

/// Returns a 64-bit hash that always differs if exactly one bit differs, and almost surely otherwise. Runs at memory
/// speed. Do not store it: the value is comparable on one machine only.
std::uint64_t fingerprint(const void* data, std::size_t num_bytes);

/// Hashes up to 64 pieces of the bytes: finds a change of all of them, and in small memory any change.
std::uint64_t sample_fingerprint(const void* data, std::size_t num_bytes);

}  // namespace accel
