#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace accel {

/// SHA-256 of bytes given piece by piece, as lower-case hexadecimal digits.
///
///     Sha256 hash;
///     hash.update(data, size);
///     std::string digits = hash.hex();
class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t num_bytes);
  /// Ends the hash: nothing may be added afterwards.
  std::string hex();

 private:
  std::shared_ptr<void> context_;
};

}  // namespace accel
