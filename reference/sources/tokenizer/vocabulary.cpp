#include "reference/sources/tokenizer/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/sources/tokenizer/byte_level.hpp"
#include "reference/sources/tokenizer/normalization.hpp"

namespace accel::sources {

// The rank of a merge is its line, also if other lines repeat its pair.
BytePairModel::BytePairModel(const TokenizerFile& file, std::vector<std::string>& problems)
    : ids_(file.vocab.begin(), file.vocab.end()), fuse_unk_(file.fuse_unk), ignore_merges_(file.ignore_merges) {
  for (const auto& [token, id] : file.vocab) tokens_[id] = token;
  for (int byte = 0; byte < 256; ++byte) bytes_[byte] = id(to_byte_level(std::string(1, static_cast<char>(byte))));
  std::uint32_t rank = 0;
  for (const auto& [left, right] : file.merges) {
    const auto left_id = id(left), right_id = id(right), merged = id(left + right);
    if (left_id && right_id && merged)
      merges_.add({.left = *left_id, .right = *right_id}, {.rank = rank, .token = *merged});
    else
      add_problem(problems, "model.merges: '{} {}': the vocabulary lacks '{}'", shortened(left), shortened(right),
                  shortened(!left_id    ? left
                            : !right_id ? right
                                        : left + right));
    ++rank;
  }
  const bool has_all_bytes =
      std::all_of(bytes_.begin(), bytes_.end(), [](const auto& byte) { return byte.has_value(); });
  if (file.unk_token) unk_ = id(*file.unk_token);
  if (file.unk_token && !unk_ && !has_all_bytes)
    add_problem(problems, "model.unk_token: the vocabulary lacks '{}'", shortened(*file.unk_token));
}

std::optional<TokenId> BytePairModel::id(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BytePairModel::token(TokenId id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

// Source: tokenizers/src/models/bpe/model.rs, merge_word. Without an unknown token, bytes that are not in the
// vocabulary are left out.
std::vector<TokenId> BytePairModel::tokens_of_bytes(std::string_view word) const {
  std::vector<TokenId> tokens;
  bool was_unknown = false;
  for (const char byte : word) {
    const auto& token = bytes_[static_cast<unsigned char>(byte)];
    if (token) tokens.push_back(*token);
    if (!token && unk_ && !(fuse_unk_ && was_unknown)) tokens.push_back(*unk_);
    was_unknown = !token;
  }
  return tokens;
}

void BytePairModel::encode(std::string_view word, std::vector<std::int64_t>& ids) const {
  const auto found = ignore_merges_ ? id(to_byte_level(word)) : std::nullopt;
  if (found) return ids.push_back(*found);
  const auto tokens = merge_tokens(tokens_of_bytes(word), merges_);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
}

// Source: tokenizers/src/tokenizer/added_vocabulary.rs, add_tokens.
AddedVocabulary::AddedVocabulary(const TokenizerFile& file, const BytePairModel& model,
                                 std::vector<std::string>& problems, std::vector<std::string>& warnings) {
  auto next_id = static_cast<TokenId>(model.size());
  for (const auto& added : file.added_tokens) {
    auto known = id(added.content);
    if (!known) known = model.id(added.content);
    if (!known) ++num_new_;
    const auto new_id = known ? *known : next_id++;
    if (added.stated_id.value_or(new_id) != new_id)
      add_problem(warnings, "'{}' has the id {} and not {}", shortened(added.content), new_id, *added.stated_id);
    ids_[added.content] = new_id;
    if (added.special) special_.insert(added.content);
    auto& token = tokens_[new_id] = added;
    if (token.normalized && file.is_nfc) token.content = to_nfc(token.content);
  }
  std::unordered_set<std::string> contents;
  for (const auto& [id, token] : tokens_) {
    if (token.normalized && !contents.insert(token.content).second)
      add_problem(problems, "added_tokens: two of them are '{}' after normalization", shortened(token.content));
  }
}

std::vector<std::pair<AddedToken, TokenId>> AddedVocabulary::tokens(bool normalized) const {
  std::vector<std::pair<AddedToken, TokenId>> result;
  for (const auto& [id, token] : tokens_) {
    if (token.normalized == normalized) result.emplace_back(token, id);
  }
  return result;
}

std::optional<TokenId> AddedVocabulary::id(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* AddedVocabulary::token(TokenId id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.content;
}

}  // namespace accel::sources
