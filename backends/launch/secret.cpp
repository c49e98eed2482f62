#include "backends/launch/secret.hpp"

#include <sha2.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Digest hash_of(std::string_view first, std::string_view second) {
  SHA2_CTX context;
  SHA256Init(&context);
  for (const auto part : {first, second})
    SHA256Update(&context, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  Digest digest{};
  SHA256Final(digest.data(), &context);
  return digest;
}

std::string_view view_of(const Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

template <typename Bytes>
std::string hex_of(const Bytes& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

std::string make_nonce() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(fmt::format("no random numbers from the kernel: {}", std::strerror(errno)));
  return hex_of(bytes);
}

std::string proof_of(const std::string& secret, const std::string& text) {
  std::string key = secret;
  if (key.size() > SHA256_BLOCK_LENGTH) key = view_of(hash_of(secret, ""));
  key.resize(SHA256_BLOCK_LENGTH, '\0');
  auto inner = key, outer = key;
  std::for_each(inner.begin(), inner.end(), [](char& byte) { byte = static_cast<char>(byte ^ 0x36); });
  std::for_each(outer.begin(), outer.end(), [](char& byte) { byte = static_cast<char>(byte ^ 0x5c); });
  const auto digest = hash_of(inner, text);
  return hex_of(hash_of(outer, view_of(digest)));
}

bool is_equal(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t index = 0; index < a.size(); ++index) difference |= static_cast<unsigned char>(a[index] ^ b[index]);
  return difference == 0;
}

}  // namespace accel::launcher
