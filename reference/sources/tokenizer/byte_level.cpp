#include "reference/sources/tokenizer/byte_level.hpp"

#include <array>

#include "reference/sources/tokenizer/utf8.hpp"

namespace accel::sources {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr char32_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<char32_t, 256> characters = {};
  std::array<int, kAlphabetEnd> bytes = {};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const auto character = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.characters[byte] = character;
    alphabet.bytes[character] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

// All characters of the alphabet have at most two bytes in UTF-8.
std::string to_byte_level(std::string_view bytes) {
  std::string result;
  result.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto character = kAlphabet.characters[static_cast<unsigned char>(byte)];
    if (character >= 0x80) result += static_cast<char>(0xc0 | character >> 6);
    result += static_cast<char>(character < 0x80 ? character : 0x80 | (character & 0x3f));
  }
  return result;
}

std::optional<std::string> from_byte_level(std::string_view token) {
  std::string result;
  while (!token.empty()) {
    const auto character = first_code_point(token);
    if (character >= kAlphabetEnd || kAlphabet.bytes[character] < 0) return std::nullopt;
    result += static_cast<char>(kAlphabet.bytes[character]);
    token.remove_prefix(character < 0x80 ? 1 : 2);
  }
  return result;
}

std::string joined_text(const std::vector<DecodedToken>& tokens) {
  std::string bytes;
  std::vector<std::size_t> owners;  // the token of each byte
  for (std::size_t token = 0; token < tokens.size(); ++token) {
    bytes += tokens[token].bytes;
    owners.resize(bytes.size(), token);
  }
  std::vector<bool> is_invalid(tokens.size());
  for (std::size_t place = 0; place < bytes.size();) {
    const auto step = utf8_step(std::string_view(bytes).substr(place));
    const auto end = place + static_cast<std::size_t>(step < 0 ? -step : step);
    for (; place < end; ++place) is_invalid[owners[place]] = is_invalid[owners[place]] || step < 0;
  }
  std::string text;
  for (std::size_t token = 0; token < tokens.size(); ++token)
    text += is_invalid[token] && !tokens[token].text.empty() ? tokens[token].text : tokens[token].bytes;
  return replace_invalid_utf8(text);
}

}  // namespace accel::sources
