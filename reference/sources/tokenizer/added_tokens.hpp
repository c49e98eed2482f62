#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reference/sources/tokenizer/byte_pair_encoding.hpp"
#include "reference/sources/tokenizer/text_splitter.hpp"

/// Tokens that are found in a text before it is split into words, such as <|endoftext|>.
///
/// Thread rule: any number of readers.
namespace accel::sources {

struct AddedToken {
  std::string content = {};
  bool single_word = false;                    ///< only between characters that are not letters or digits
  bool lstrip = false;                         ///< includes white space before it
  bool rstrip = false;                         ///< includes white space after it
  bool normalized = true;                      ///< is searched for in the normalized text
  bool special = false;                        ///< is left out by decode
  std::optional<std::int64_t> stated_id = {};  ///< in the file; the token's id may be another one
};

class AddedTokenSearch {
 public:
  struct Part {
    std::string_view text = {};  ///< text without added tokens; empty for a token
    std::optional<TokenId> token = {};
  };

  /// Contents must be unique.
  explicit AddedTokenSearch(const std::vector<std::pair<AddedToken, TokenId>>& tokens);

  /// At each place the longest token is found, from left to right. `text` is valid UTF-8.
  [[nodiscard]] std::vector<Part> split(std::string_view text) const;

 private:
  struct Flags {
    TokenId id = 0;
    bool single_word = false, lstrip = false, rstrip = false;
  };
  using Tokens = std::unordered_map<std::string, Flags>;

  [[nodiscard]] const Tokens::value_type* longest_at(std::string_view rest) const;
  [[nodiscard]] bool is_single_word(std::string_view before, std::string_view after) const;

  Tokens tokens_;
  std::array<std::vector<std::size_t>, 256> lengths_;  // of tokens by their first byte, the longest first
  TextSplitter word_character_;
};

}  // namespace accel::sources
