#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Regular expressions of tokenizer files, which the `tokenizers` package runs with Oniguruma, rewritten for PCRE2.
///
///     std::vector<std::string> problems;
///     const auto pattern = to_pcre2(R"(\s+(?!\S)|\p{N}{1,3}|(?i:'s))", problems);
///
/// Accepts what both libraries define alike, and what can be rewritten: in PCRE2 10.42, \s contains U+180E, and the
/// general categories are those of Unicode 14, while `tokenizers` has Unicode 16.
/// Thread rule: pure functions.
namespace accel::sources {

/// Adds one text to `problems` per unsupported part of the pattern; the result is then meaningless.
std::string to_pcre2(std::string_view pattern, std::vector<std::string>& problems);

/// A pattern that matches `text` literally.
std::string literal_pattern(std::string_view text);

/// The parts of a character class, in PCRE2's syntax, that match a general category of Unicode 16, e.g. "L" or "Nd".
/// Empty if the category is unknown.
std::string category_members(std::string_view category);

/// GPT-2's pattern, which ByteLevel pre-tokenizers use. Source: tokenizers/src/pre_tokenizers/byte_level.rs.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace accel::sources
