#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

/// Byte-pair encoding: which neighbouring tokens of a word are merged, and in which order. Pure.
///
///     MergeTable merges;
///     merges.add({.left = h, .right = e}, {.rank = 0, .token = he});
///     merge_tokens({h, e, y}, merges);   // {he, y}
///
/// Thread rule: a table that no longer changes has any number of readers.
namespace accel::sources {

using TokenId = std::uint32_t;

struct TokenPair {
  TokenId left = 0, right = 0;
};

/// The pair with the lowest rank is merged first, into `token`.
struct Merge {
  std::uint32_t rank = 0;
  TokenId token = 0;
};

class MergeTable {
 public:
  /// Replaces an earlier merge of the same pair, as a repeated line of a tokenizer's file does.
  void add(TokenPair pair, Merge merge) { merges_[key(pair)] = merge; }
  /// Returns nullptr if the pair is not merged.
  [[nodiscard]] const Merge* find(TokenPair pair) const {
    const auto found = merges_.find(key(pair));
    return found == merges_.end() ? nullptr : &found->second;
  }

 private:
  static std::uint64_t key(TokenPair pair) { return static_cast<std::uint64_t>(pair.left) << 32 | pair.right; }

  std::unordered_map<std::uint64_t, Merge> merges_;
};

/// Merges pairs until none is in the table: always the pair of the lowest rank, and of equal ones the first. Time:
/// O(n log n). Source: tokenizers/src/models/bpe/word.rs, merge_all.
std::vector<TokenId> merge_tokens(const std::vector<TokenId>& tokens, const MergeTable& merges);

}  // namespace accel::sources
