#include "reference/core/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The context is a shared_ptr<void> in the header, so that the header does not include OpenSSL.
EVP_MD_CTX* context_of(const std::shared_ptr<void>& context) { return static_cast<EVP_MD_CTX*>(context.get()); }

}  // namespace

Sha256::Sha256()
    : context_(EVP_MD_CTX_new(), [](void* context) { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context)); }) {
  ensure(EVP_DigestInit_ex(context_of(context_), EVP_sha256(), nullptr) == 1, "OpenSSL does not provide SHA-256");
}

void Sha256::update(const void* data, std::size_t num_bytes) {
  ensure(context_ != nullptr, "SHA-256 was already finished; expected no call after hex()");
  ensure(EVP_DigestUpdate(context_of(context_), data, num_bytes) == 1, "SHA-256 update failed");
}

std::string Sha256::hex() {
  // OpenSSL 3.0 does not check this.
  ensure(context_ != nullptr, "SHA-256 was already finished; expected no call after hex()");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  ensure(EVP_DigestFinal_ex(context_of(context_), digest.data(), &size) == 1, "SHA-256 failed to finish");
  context_.reset();
  std::string digits;
  for (unsigned int i = 0; i < size; ++i) digits += fmt::format("{:02x}", digest[i]);
  return digits;
}

}  // namespace accel
