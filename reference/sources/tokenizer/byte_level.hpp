#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// GPT-2's alphabet of 256 printable characters, one per byte, in which the tokens of byte-level vocabularies are
/// written. Printable bytes of Latin-1 stand for themselves; the others are U+0100 to U+0143, so a space is "Ġ".
///
///     accel::sources::to_byte_level(" a")    // "Ġa"
///
/// Source: github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode.
/// Thread rule: pure functions.
namespace accel::sources {

std::string to_byte_level(std::string_view bytes);
/// Returns nullopt if `token` contains a character that is not in the alphabet.
std::optional<std::string> from_byte_level(std::string_view token);

/// A token of which decode makes text.
struct DecodedToken {
  std::string bytes = {};  ///< may be a part of a character
  std::string text = {};   ///< used if the bytes are not valid UTF-8 together with those around them; empty: none
};

/// Returns valid UTF-8. A character may be divided between tokens; bytes that belong to none are replaced with U+FFFD.
std::string joined_text(const std::vector<DecodedToken>& tokens);

}  // namespace accel::sources
