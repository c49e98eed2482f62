#pragma once

#include <optional>
#include <string>
#include <string_view>

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

}  // namespace accel::sources
