#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Characters of UTF-8 text, as defined by Unicode (no surrogates, no overlong forms).
///
///     if (const auto place = accel::sources::first_invalid_utf8(text)) { ... }   // a byte offset
///
/// Thread rule: pure functions.
namespace accel::sources {

/// Number of bytes of the character at the start of `text`, which is not empty. Negative: there is no character, and
/// Unicode's recommendation replaces this many bytes with one U+FFFD.
int utf8_step(std::string_view text);
/// Offset of the first byte that is not part of a character.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);
/// Replaces invalid bytes with U+FFFD, as Rust's from_utf8_lossy and Python's errors="replace" do.
std::string replace_invalid_utf8(std::string_view text);

/// The code point at the start of valid, not empty text.
char32_t first_code_point(std::string_view text);
/// The offset of the last character of valid, not empty text.
std::size_t last_character(std::string_view text);
/// Unicode's property White_Space.
bool is_white_space(char32_t code_point);

}  // namespace accel::sources
