#include "reference/sources/tokenizer/byte_pair_encoding.hpp"

#include <queue>
#include <tuple>

namespace accel::sources {
namespace {

constexpr std::int64_t kNone = -1;

// A list of tokens that are linked with their neighbours. A merged token keeps the place of its left part.
struct LinkedToken {
  TokenId id = 0;
  std::int64_t previous = kNone, next = kNone;
  bool is_removed = false;
};

struct Candidate {
  std::int64_t place = 0;
  Merge merge = {};

  // std::priority_queue returns the largest element first.
  bool operator<(const Candidate& other) const {
    return std::tie(other.merge.rank, other.place) < std::tie(merge.rank, place);
  }
};

class Merging {
 public:
  Merging(const std::vector<TokenId>& tokens, const MergeTable& merges) : merges_(merges), tokens_(tokens.size()) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t place = 0; place < size; ++place)
      tokens_[place] = {.id = tokens[place], .previous = place - 1, .next = place + 1 < size ? place + 1 : kNone};
    for (std::int64_t place = 0; place < size; ++place) propose(place);
  }

  std::vector<TokenId> run() {
    while (!candidates_.empty()) {
      const auto candidate = candidates_.top();
      candidates_.pop();
      // Outdated candidates stay in the queue; the token that a merge makes identifies them.
      const auto* merge = merge_at(candidate.place);
      if (merge != nullptr && merge->token == candidate.merge.token) apply(candidate);
    }
    std::vector<TokenId> result;
    for (const auto& token : tokens_) {
      if (!token.is_removed) result.push_back(token.id);
    }
    return result;
  }

 private:
  // The merge of the token at `place` with the next one.
  const Merge* merge_at(std::int64_t place) const {
    const auto& token = tokens_[place];
    if (token.is_removed || token.next == kNone) return nullptr;
    return merges_.find({.left = token.id, .right = tokens_[token.next].id});
  }

  void propose(std::int64_t place) {
    if (const auto* merge = merge_at(place)) candidates_.push({.place = place, .merge = *merge});
  }

  void apply(const Candidate& candidate) {
    auto& token = tokens_[candidate.place];
    auto& right = tokens_[token.next];
    token.id = candidate.merge.token;
    token.next = right.next;
    right.is_removed = true;
    if (token.next != kNone) tokens_[token.next].previous = candidate.place;
    if (token.previous != kNone) propose(token.previous);
    propose(candidate.place);
  }

  const MergeTable& merges_;
  std::vector<LinkedToken> tokens_;
  std::priority_queue<Candidate> candidates_;
};

}  // namespace

std::vector<TokenId> merge_tokens(const std::vector<TokenId>& tokens, const MergeTable& merges) {
  return tokens.size() < 2 ? tokens : Merging(tokens, merges).run();
}

}  // namespace accel::sources
