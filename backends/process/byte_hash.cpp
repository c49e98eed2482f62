#include "backends/process/byte_hash.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace accel::process {

std::uint64_t byte_hash(const void* data, std::size_t bytes) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};
  const auto* at = static_cast<const char*>(data);
  for (std::size_t lane = 0; bytes >= 8; bytes -= 8, at += 8, lane = (lane + 1) % lanes.size()) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    lanes[lane] = (lanes[lane] ^ word) * kPrime;
    lanes[lane] ^= lanes[lane] >> 29;
  }
  std::uint64_t hash = bytes;
  std::memcpy(&hash, at, bytes);
  for (const auto lane : lanes) hash = (hash ^ lane) * kPrime + (hash >> 31);
  return hash;
}

std::uint64_t sample_hash(const at::Tensor& tensor) {
  constexpr std::size_t kPiece = 64, kPieces = 64;
  if (!tensor.is_non_overlapping_and_dense()) return 0;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const std::size_t size = tensor.nbytes();
  if (size <= kPiece * kPieces) return byte_hash(bytes, size);
  std::array<char, kPiece * kPieces> sample;
  for (std::size_t piece = 0; piece < kPieces; ++piece)
    std::copy_n(bytes + (size - kPiece) * piece / (kPieces - 1), kPiece, sample.data() + piece * kPiece);
  return byte_hash(sample.data(), sample.size());
}

}  // namespace accel::process
