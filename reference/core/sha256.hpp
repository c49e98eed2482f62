#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace accel {

/// Computes the SHA-256 of data that arrives piece by piece, as lower-case hexadecimal digits.
///
///     Sha256 hash;
///     hash.update(data, size);
///     std::string digits = hash.hex();
class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t num_bytes);
  /// Finishes the hash and returns its digits. Throws InternalError if the hash is used afterwards.
  std::string hex();

 private:
  std::shared_ptr<void> context_;
};

}  // namespace accel
