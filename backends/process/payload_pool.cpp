#include "backends/process/payload_pool.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::process {
namespace {

constexpr std::uint64_t kAlignment = 64;  // a cache line, as LibTorch aligns its tensors

}  // namespace

std::uint64_t PayloadPool::take(std::uint64_t bytes) {
  const auto size = std::max<std::uint64_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& piece) { return piece.second >= size; });
  if (found == free_.end()) {
    throw CommError(
        fmt::format("a collective needs {} MiB of shared memory, more than this rank has left; wait for "
                    "pending collectives, or exchange smaller tensors",
                    bytes >> 20));
  }
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > size) free_[offset + size] = available - size;
  taken_[offset] = size;
  return offset;
}

void PayloadPool::give(std::uint64_t offset) {
  const auto piece = taken_.find(offset);
  ensure(piece != taken_.end(), "payload: offset {} is not taken", offset);
  auto joined = free_.emplace(*piece).first;
  taken_.erase(piece);
  if (const auto next = std::next(joined); next != free_.end() && joined->first + joined->second == next->first) {
    joined->second += next->second;
    free_.erase(next);
  }
  if (joined == free_.begin()) return;
  if (const auto before = std::prev(joined); before->first + before->second == joined->first) {
    before->second += joined->second;
    free_.erase(joined);
  }
}

}  // namespace accel::process
