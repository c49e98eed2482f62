// PCRE2's just-in-time compiler and its interpreter have the same results. The interpreter runs where the machine
// forbids generated code, and where a match needs more stack than generated code has.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "reference/sources/tokenizer/text_splitter.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "reference/core/errors.hpp"

namespace accel::sources {
namespace {

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

std::shared_ptr<const void> compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                             &error, &place, nullptr);
  check_argument(code != nullptr, "PCRE2 rejects it: {}", pcre2_message(error));
  const std::shared_ptr<const void> result(
      code, [](const void* owned) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(owned))); });
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  check_argument(matches_empty == 0, "it matches the empty string");
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return result;
}

// Returns false if there is no match at or after `begin`.
bool match(const void* opaque, std::string_view text, std::size_t begin, std::uint32_t options, const MatchData& data) {
  const auto* code = static_cast<const pcre2_code*>(opaque);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  options |= PCRE2_NO_UTF_CHECK;
  auto result = pcre2_match(code, subject, text.size(), begin, options, data.get(), nullptr);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(code, subject, text.size(), begin, options | PCRE2_NO_JIT, data.get(), nullptr);
  check_argument(result >= 0 || result == PCRE2_ERROR_NOMATCH,
                 "the tokenizer's pattern cannot split a text of {} bytes at byte {}: {}; split the text first",
                 text.size(), begin, pcre2_message(result));
  return result >= 0;
}

MatchData match_data(const void* code) {
  return {pcre2_match_data_create_from_pattern(static_cast<const pcre2_code*>(code), nullptr), &pcre2_match_data_free};
}

}  // namespace

// Source: tokenizers/src/tokenizer/normalizer.rs, NormalizedString::split.
std::vector<TextPiece> apply_behavior(std::vector<TextPiece> pieces, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kIsolated) return pieces;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(pieces, [](const auto& piece) { return piece.is_match; });
    return pieces;
  }
  const bool is_backward = behavior == SplitBehavior::kMergedWithNext;
  if (is_backward) std::reverse(pieces.begin(), pieces.end());
  std::vector<TextPiece> result;
  bool was_match = false;
  for (const auto& piece : pieces) {
    const bool is_joined =
        behavior == SplitBehavior::kContiguous ? piece.is_match == was_match : piece.is_match && !was_match;
    was_match = piece.is_match;
    if (!is_joined || result.empty()) {
      result.push_back(piece);
    } else if (is_backward) {
      result.back().begin = piece.begin;
    } else {
      result.back().end = piece.end;
    }
  }
  if (is_backward) std::reverse(result.begin(), result.end());
  return result;
}

TextSplitter::TextSplitter(std::string_view pattern, const SplitOptions& options)
    : code_(compile(pattern)), options_(options) {}

std::vector<TextPiece> TextSplitter::find_matches(std::string_view text) const {
  const auto data = match_data(code_.get());
  std::vector<TextPiece> pieces;
  std::size_t end = 0;
  while (end < text.size() && match(code_.get(), text, end, 0, data)) {
    const auto* found = pcre2_get_ovector_pointer(data.get());
    if (found[0] > end) pieces.push_back({.begin = end, .end = found[0], .is_match = options_.invert});
    pieces.push_back({.begin = found[0], .end = found[1], .is_match = !options_.invert});
    end = found[1];
  }
  if (end < text.size()) pieces.push_back({.begin = end, .end = text.size(), .is_match = options_.invert});
  return pieces;
}

std::vector<std::string_view> TextSplitter::split(std::string_view text) const {
  std::vector<std::string_view> result;
  for (const auto& piece : apply_behavior(find_matches(text), options_.behavior))
    result.push_back(text.substr(piece.begin, piece.end - piece.begin));
  return result;
}

bool TextSplitter::matches_start(std::string_view text) const {
  return match(code_.get(), text, 0, PCRE2_ANCHORED, match_data(code_.get()));
}

}  // namespace accel::sources
