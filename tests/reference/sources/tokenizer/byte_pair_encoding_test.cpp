// The plan of byte-pair encoding against a direct implementation on texts.
#include "reference/sources/tokenizer/byte_pair_encoding.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "tests/support/property.hpp"

namespace accel::sources {
namespace {

using ::testing::ElementsAre;

TEST(BytePairEncodingTest, TheLowestRankIsMergedFirst) {
  MergeTable merges;  // 0 and 1 make 3, 1 and 2 make 4
  merges.add({.left = 0, .right = 1}, {.rank = 7, .token = 3});
  merges.add({.left = 1, .right = 2}, {.rank = 5, .token = 4});
  EXPECT_THAT(merge_tokens({0, 1, 2}, merges), ElementsAre(0, 4));
}

TEST(BytePairEncodingTest, OfEqualRanksTheFirstPairIsMerged) {
  MergeTable merges;
  merges.add({.left = 0, .right = 0}, {.rank = 0, .token = 1});
  EXPECT_THAT(merge_tokens({0, 0, 0}, merges), ElementsAre(1, 0));
}

TEST(BytePairEncodingTest, ARepeatedPairHasItsLastRank) {
  MergeTable merges;
  merges.add({.left = 0, .right = 1}, {.rank = 0, .token = 3});
  merges.add({.left = 1, .right = 2}, {.rank = 1, .token = 4});
  merges.add({.left = 0, .right = 1}, {.rank = 2, .token = 3});
  EXPECT_THAT(merge_tokens({0, 1, 2}, merges), ElementsAre(0, 4));
}

TEST(BytePairEncodingTest, NothingIsMergedInShortWords) {
  EXPECT_THAT(merge_tokens({}, {}), ElementsAre());
  EXPECT_THAT(merge_tokens({9}, {}), ElementsAre(9));
}

// Tokens as texts, and merges in the order of their ranks.
struct Vocabulary {
  std::vector<std::string> tokens{"a", "b", "c"};
  std::vector<std::pair<std::string, std::string>> merges;

  [[nodiscard]] TokenId id(const std::string& token) const {
    return static_cast<TokenId>(std::find(tokens.begin(), tokens.end(), token) - tokens.begin());
  }
};

Vocabulary any_vocabulary() {
  Vocabulary vocabulary;
  using testing::pick;
  using testing::pick_from;
  for (int i = 0, count = pick(0, 12); i < count; ++i) {
    const auto left = pick_from(vocabulary.tokens), right = pick_from(vocabulary.tokens);
    if (std::find(vocabulary.merges.begin(), vocabulary.merges.end(), std::pair(left, right)) !=
        vocabulary.merges.end())
      continue;
    vocabulary.merges.emplace_back(left, right);
    if (vocabulary.id(left + right) == vocabulary.tokens.size()) vocabulary.tokens.push_back(left + right);
  }
  return vocabulary;
}

// Looks for the best pair in the complete word after every merge.
std::vector<std::string> merged_directly(std::vector<std::string> word, const Vocabulary& vocabulary) {
  for (bool has_merged = true; has_merged;) {
    has_merged = false;
    for (const auto& [left, right] : vocabulary.merges) {
      for (std::size_t place = 0; place + 1 < word.size() && !has_merged; ++place) {
        if (word[place] != left || word[place + 1] != right) continue;
        word[place] = left + right;
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(place) + 1);
        has_merged = true;
      }
      if (has_merged) break;
    }
  }
  return word;
}

TEST(BytePairEncodingTest, EqualsTheDirectImplementation) {
  testing::expect_property(2000, [] {
    using testing::pick;
    using testing::pick_from;
    const auto vocabulary = any_vocabulary();
    MergeTable merges;
    for (std::uint32_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      const auto& [left, right] = vocabulary.merges[rank];
      merges.add({.left = vocabulary.id(left), .right = vocabulary.id(right)},
                 {.rank = rank, .token = vocabulary.id(left + right)});
    }
    std::vector<std::string> word;
    for (int i = 0, length = pick(0, 20); i < length; ++i) word.emplace_back(1, pick_from({'a', 'b', 'c'}));
    std::vector<TokenId> ids, expected;
    for (const auto& token : word) ids.push_back(vocabulary.id(token));
    for (const auto& token : merged_directly(word, vocabulary)) expected.push_back(vocabulary.id(token));
    RC_ASSERT(merge_tokens(ids, merges) == expected);
  });
}

}  // namespace
}  // namespace accel::sources
