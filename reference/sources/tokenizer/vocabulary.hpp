#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reference/sources/tokenizer/byte_pair_encoding.hpp"
#include "reference/sources/tokenizer/tokenizer_file.hpp"

/// The tokens of a tokenizer and their ids.
///
/// Thread rule: any number of readers.
namespace accel::sources {

/// The tokens of the model, and how words become tokens.
class BytePairModel {
 public:
  /// Adds one text per merge of unknown tokens to `problems`, and others.
  BytePairModel(const TokenizerFile& file, std::vector<std::string>& problems);

  /// Appends the ids of a word, which is not empty.
  void encode(std::string_view word, std::vector<std::int64_t>& ids) const;

  [[nodiscard]] std::optional<TokenId> id(const std::string& token) const;
  [[nodiscard]] const std::string* token(TokenId id) const;
  [[nodiscard]] std::size_t size() const { return ids_.size(); }

 private:
  [[nodiscard]] std::vector<TokenId> tokens_of_bytes(std::string_view word) const;

  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<TokenId, std::string> tokens_;
  std::array<std::optional<TokenId>, 256> bytes_;
  MergeTable merges_;
  std::optional<TokenId> unk_;
  bool fuse_unk_, ignore_merges_;
};

/// Added tokens by id. One that the model contains keeps its id; others follow after the model's.
class AddedVocabulary {
 public:
  /// Adds one text per token whose id is not that of the file to `warnings`.
  AddedVocabulary(const TokenizerFile& file, const BytePairModel& model, std::vector<std::string>& problems,
                  std::vector<std::string>& warnings);

  /// The tokens to find in the text before or after its normalization.
  [[nodiscard]] std::vector<std::pair<AddedToken, TokenId>> tokens(bool normalized) const;
  [[nodiscard]] std::optional<TokenId> id(const std::string& token) const;
  /// As in `tokenizers`, the normalized content of a token that is found in normalized text.
  [[nodiscard]] const std::string* token(TokenId id) const;
  [[nodiscard]] bool is_special(const std::string& token) const { return special_.contains(token); }
  /// The number of tokens that the model lacks.
  [[nodiscard]] std::size_t num_new() const { return num_new_; }

 private:
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<TokenId, AddedToken> tokens_;
  std::unordered_set<std::string> special_;
  std::size_t num_new_ = 0;
};

}  // namespace accel::sources
