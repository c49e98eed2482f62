#include "sim/backend/fingerprint.hpp"

#include <array>
#include <cstring>

namespace accel::sim {
namespace {

// Fletcher's checksum in lanes: additions alone, which compilers turn into vector code on every machine. The sum of sums
// makes the place of a word count.
constexpr std::size_t kLanes = 16;

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCDull;
  value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return value ^ (value >> 33);
}

}  // namespace

std::uint64_t fingerprint(const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::array<std::uint32_t, kLanes> sums{}, sums_of_sums{}, words{};
  std::size_t offset = 0;
  for (; offset + sizeof(words) <= num_bytes; offset += sizeof(words)) {
    std::memcpy(words.data(), bytes + offset, sizeof(words));
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += words[lane];
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums_of_sums[lane] += sums[lane];
  }
  words = {};
  std::memcpy(words.data(), bytes + offset, num_bytes - offset);
  std::uint64_t result = mix(num_bytes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result = mix(result ^ (std::uint64_t{sums[lane]} << 32 | sums_of_sums[lane]));
    result = mix(result + words[lane] + lane);
  }
  return result;
}

}  // namespace accel::sim
