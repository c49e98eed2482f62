#pragma once

#include <cstddef>
#include <cstdint>

namespace accel::sim {

/// 64 bits that differ if one bit of the bytes does, and almost surely otherwise. Reads at the speed of memory; not for
/// keeping: the value is the same on one machine only.
std::uint64_t fingerprint(const void* data, std::size_t num_bytes);

}  // namespace accel::sim
