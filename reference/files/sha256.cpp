#include "reference/files/sha256.hpp"

#include <array>

#include "reference/core/errors.hpp"

namespace accel {

Sha256::Sha256() { SHA256Init(&context_); }

void Sha256::update(const void* data, std::size_t num_bytes) {
  ensure(!is_finished_, "SHA-256 was already finished; expected no call after hex()");
  SHA256Update(&context_, static_cast<const uint8_t*>(data), num_bytes);
}

std::string Sha256::hex() {
  ensure(!is_finished_, "SHA-256 was already finished; expected no call after hex()");
  std::array<char, SHA256_DIGEST_STRING_LENGTH> digits{};
  is_finished_ = true;
  return SHA256End(&context_, digits.data());
}

}  // namespace accel
