#pragma once

#include <cstdint>
#include <map>

namespace accel::process {

/// Hands out pieces of one rank's payload, the shared memory that holds its tensors and messages; first fit.
///
/// Thread rule: one thread at a time.
class PayloadPool {
 public:
  explicit PayloadPool(std::uint64_t bytes) : free_{{0, bytes}} {}

  /// Returns the offset of `bytes` bytes, aligned to a cache line. Throws CommError if the payload is full.
  std::uint64_t take(std::uint64_t bytes);
  /// Gives back what `take` has returned.
  void give(std::uint64_t offset);

 private:
  std::map<std::uint64_t, std::uint64_t> free_;   // offset, bytes; neighbours are joined
  std::map<std::uint64_t, std::uint64_t> taken_;  // offset, bytes
};

}  // namespace accel::process
