#pragma once

#include <sha2.h>

#include <cstddef>
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
  SHA2_CTX context_;
  bool is_finished_ = false;
};

}  // namespace accel
