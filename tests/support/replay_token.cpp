#include "tests/support/replay_token.hpp"

#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace accel::testing {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

std::string to_base64(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const auto byte : bytes) {
    bits = bits << 8 | byte;
    for (num_bits += 8; num_bits >= 6; num_bits -= 6) text += kAlphabet[bits >> (num_bits - 6) & 63];
  }
  if (num_bits > 0) text += kAlphabet[bits << (6 - num_bits) & 63];
  return text;
}

std::vector<std::uint8_t> from_base64(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const auto letter : text) {
    const auto value = kAlphabet.find(letter);
    if (value == std::string_view::npos) throw std::invalid_argument("not a letter of base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if ((num_bits += 6) >= 8) bytes.push_back(static_cast<std::uint8_t>(bits >> (num_bits -= 8)));
  }
  return bytes;
}

}  // namespace

std::string to_string(const ReplayToken& token) {
  std::vector<std::uint8_t> bytes;
  rc::detail::serialize(token.reproduce, std::back_inserter(bytes));
  return token.property + ":" + to_base64(bytes);
}

ReplayToken parse_replay_token(const std::string& text) {
  const auto colon = text.rfind(':');
  try {
    if (colon == std::string::npos || colon == 0) throw std::invalid_argument("no colon");
    ReplayToken token{.property = text.substr(0, colon), .reproduce = {}};
    auto bytes = from_base64(std::string_view(text).substr(colon + 1));
    // RapidCheck reads one byte without a check for the end, so one more byte exists.
    bytes.push_back(0);
    rc::detail::deserialize(bytes.begin(), bytes.end() - 1, token.reproduce);
    return token;
  } catch (const std::exception&) {  // SerializationException among others
    throw std::invalid_argument("'" + text +
                                "' is not a replay token; expected SUITE.TEST:LETTERS as a failed property " +
                                "prints it after --replay");
  }
}

}  // namespace accel::testing
