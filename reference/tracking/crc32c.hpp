#pragma once

#include <cstdint>
#include <string_view>

namespace accel::tracking {

/// CRC-32C (Castagnoli), of RFC 3720. Thread rule: any thread.
std::uint32_t crc32c(std::string_view bytes);

/// The form in which TFRecord files keep it, so that a checksum of bytes that hold checksums is a good one.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace accel::tracking
