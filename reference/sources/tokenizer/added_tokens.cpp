#include "reference/sources/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <functional>

#include "reference/sources/tokenizer/split_pattern.hpp"
#include "reference/sources/tokenizer/utf8.hpp"

namespace accel::sources {
namespace {

// \w of Rust's regex crate.
std::string word_pattern() {
  return "[\\p{Alphabetic}" + category_members("L") + category_members("M") + category_members("Nd") +
         category_members("Nl") + category_members("Pc") + "\\x{200c}\\x{200d}]";
}

std::size_t white_space_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_white_space(first_code_point(text.substr(length))))
    length += static_cast<std::size_t>(utf8_step(text.substr(length)));
  return length;
}

std::size_t without_trailing_white_space(std::string_view text) {
  while (!text.empty() && is_white_space(first_code_point(text.substr(last_character(text)))))
    text = text.substr(0, last_character(text));
  return text.size();
}

}  // namespace

AddedTokenSearch::AddedTokenSearch(const std::vector<std::pair<AddedToken, TokenId>>& tokens)
    : word_character_(word_pattern(), {}) {
  for (const auto& [token, id] : tokens) {
    tokens_[token.content] = {
        .id = id, .single_word = token.single_word, .lstrip = token.lstrip, .rstrip = token.rstrip};
    lengths_[static_cast<unsigned char>(token.content[0])].push_back(token.content.size());
  }
  for (auto& lengths : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
}

const AddedTokenSearch::Tokens::value_type* AddedTokenSearch::longest_at(std::string_view rest) const {
  for (const auto length : lengths_[static_cast<unsigned char>(rest[0])]) {
    if (length > rest.size()) continue;
    const auto found = tokens_.find(std::string(rest.substr(0, length)));
    if (found != tokens_.end()) return &*found;
  }
  return nullptr;
}

bool AddedTokenSearch::is_single_word(std::string_view before, std::string_view after) const {
  return (before.empty() || !word_character_.matches_start(before.substr(last_character(before)))) &&
         (after.empty() || !word_character_.matches_start(after));
}

// Source: tokenizers/src/tokenizer/added_vocabulary.rs, find_matches. As there, the search continues after the token
// and not after the white space that `rstrip` adds, so that a later token may begin within it.
std::vector<AddedTokenSearch::Part> AddedTokenSearch::split(std::string_view text) const {
  std::vector<Part> parts;
  if (tokens_.empty()) {
    if (!text.empty()) parts.push_back({.text = text});
    return parts;
  }
  std::size_t done = 0;
  for (std::size_t place = 0; place < text.size();) {
    const auto* found = longest_at(text.substr(place));
    if (found == nullptr) {
      ++place;
      continue;
    }
    auto begin = place, end = place + found->first.size();
    place = end;
    const auto& flags = found->second;
    if (flags.single_word && !is_single_word(text.substr(0, begin), text.substr(end))) continue;
    if (flags.lstrip) begin = std::max(without_trailing_white_space(text.substr(0, begin)), done);
    if (flags.rstrip) end += white_space_length(text.substr(end));
    if (done < begin) parts.push_back({.text = text.substr(done, begin - done)});
    if (begin < end) parts.push_back({.token = flags.id});  // otherwise an earlier token contains it
    done = end;
  }
  if (done < text.size()) parts.push_back({.text = text.substr(done)});
  return parts;
}

}  // namespace accel::sources
