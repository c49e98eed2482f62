#pragma once

#include <string>

/// Proofs that a peer holds the secret of a job, without sending the secret: HMAC-SHA256 (RFC 2104).
///
///     const auto nonce = make_nonce();  // sent to the peer
///     if (is_equal(received, proof_of(secret, nonce + " join 1 2 8"))) ...
///
/// Thread rule: any thread.
namespace accel::launcher {

/// 32 random hexadecimal digits. Throws Error if the kernel has no random numbers.
std::string make_nonce();

/// The HMAC of the text, as 64 hexadecimal digits.
std::string proof_of(const std::string& secret, const std::string& text);

/// Compares in a time that does not depend on the content.
bool is_equal(const std::string& a, const std::string& b);

}  // namespace accel::launcher
