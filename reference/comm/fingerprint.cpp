#include "reference/comm/fingerprint.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace accel {
namespace {

// Fletcher's checksum in lanes: the sum of sums makes the result depend on the position of a word. A word's
// upper half is mixed into its lower half first: sums cancel an even number of changes of their highest bit,
// which in a float is the sign. The vectors are spelled out, four of four words, a size that every machine has
// and that stays in registers: arrays of 16 words ran at a tenth of the speed.
using Words [[gnu::vector_size(16)]] = std::uint32_t;
constexpr std::size_t kVectors = 4, kWords = sizeof(Words) / sizeof(std::uint32_t);

// MurmurHash3's finalizer.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCDull;
  value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return value ^ (value >> 33);
}

}  // namespace

// Bytes after the last complete block go to `rest`, which is mixed in separately, so no padding is read.
std::uint64_t fingerprint(const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  Words sums[kVectors] = {}, sums_of_sums[kVectors] = {}, rest[kVectors] = {};
  std::size_t offset = 0;
  for (; offset + sizeof(rest) <= num_bytes; offset += sizeof(rest)) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) {
      Words words;
      std::memcpy(&words, bytes + offset + i * sizeof(words), sizeof(words));
      sums[i] += words ^ words >> 16;
      sums_of_sums[i] += sums[i];
    }
  }
  if (offset < num_bytes) std::memcpy(rest, bytes + offset, num_bytes - offset);  // `bytes` may be null
  std::uint64_t result = mix(num_bytes);
  for (std::size_t i = 0; i < kVectors; ++i) {
    for (std::size_t lane = 0; lane < kWords; ++lane) {
      result = mix(result ^ (std::uint64_t{sums[i][lane]} << 32 | sums_of_sums[i][lane]));
      result = mix(result + rest[i][lane] + i * kWords + lane);
    }
  }
  return result;
}

// The pieces are spread evenly from the first byte to the last. Hashing everything would cost as much as a collective;
// a program that overwrites its tensor changes all of it, so a sample suffices.
std::uint64_t sample_fingerprint(const void* data, std::size_t num_bytes) {
  constexpr std::size_t kPiece = 64, kPieces = 64;
  if (num_bytes <= kPiece * kPieces) return fingerprint(data, num_bytes);
  const auto* bytes = static_cast<const char*>(data);
  std::array<char, kPiece * kPieces> sample;
  for (std::size_t piece = 0; piece < kPieces; ++piece)
    std::copy_n(bytes + (num_bytes - kPiece) * piece / (kPieces - 1), kPiece, sample.data() + piece * kPiece);
  return fingerprint(sample.data(), sample.size());
}

}  // namespace accel
