#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Splits text at the matches of a pattern, as the pre-tokenizer Split of the `tokenizers` package does.
///
///     const TextSplitter words(R"(\s+)", {.behavior = SplitBehavior::kRemoved});
///     words.split("a b");   // {"a", "b"}
///
/// Thread rule: any number of readers; copies share the compiled pattern.
namespace accel::sources {

/// What becomes of a match. kContiguous joins neighbouring matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitOptions {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< the text between matches counts as the match
};

struct TextPiece {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

/// The plan: which pieces of the text remain. `pieces` cover the text in order.
std::vector<TextPiece> apply_behavior(std::vector<TextPiece> pieces, SplitBehavior behavior);

class TextSplitter {
 public:
  /// Throws ArgumentError if PCRE2 rejects the pattern, or if it matches the empty string.
  TextSplitter(std::string_view pattern, const SplitOptions& options);

  /// Returns the pieces of valid UTF-8 `text` that are not empty. Throws ArgumentError if the pattern needs too many
  /// steps for this text.
  [[nodiscard]] std::vector<std::string_view> split(std::string_view text) const;

  /// Whether the pattern matches at the start of valid UTF-8 `text`.
  [[nodiscard]] bool matches_start(std::string_view text) const;

 private:
  [[nodiscard]] std::vector<TextPiece> find_matches(std::string_view text) const;

  std::shared_ptr<const void> code_;  // of PCRE2
  SplitOptions options_;
};

}  // namespace accel::sources
