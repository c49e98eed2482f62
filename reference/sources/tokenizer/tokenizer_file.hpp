#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/core/input/listed.hpp"
#include "reference/sources/tokenizer/added_tokens.hpp"
#include "reference/sources/tokenizer/text_splitter.hpp"

/// The content of a tokenizer.json of the Hugging Face package `tokenizers`, as far as it is supported.
///
///     const auto file = accel::sources::read_tokenizer_file(PosixFiles().read(path), path);
///
/// Thread rule: values.
namespace accel::sources {

struct TokenizerFile {
  // model
  std::vector<std::pair<std::string, TokenId>> vocab = {};
  std::vector<std::pair<std::string, std::string>> merges = {};  ///< in the order of their ranks
  std::optional<std::string> unk_token = {};
  bool fuse_unk = false;
  bool ignore_merges = false;
  // pre_tokenizer
  std::vector<TextSplitter> splitters = {};
  bool add_prefix_space = false;  ///< of each part of the text, after the splitters
  bool use_regex = true;          ///< splits each part by kGpt2Pattern, after the prefix space
  // the rest
  bool is_nfc = false;
  std::vector<AddedToken> added_tokens = {};
  std::vector<TokenId> prefix = {}, suffix = {};  ///< what post_processor adds, e.g. <s> and </s>
  bool is_byte_level_decoder = false;             ///< otherwise decode joins tokens with spaces
};

/// Throws ConfigError, which names `path` and lists everything that is wrong or unsupported.
TokenizerFile read_tokenizer_file(std::string_view json, const std::string& path);

/// Adds a problem. Only what `listed` shows has a text, since a hostile file has many problems.
template <typename... Args>
void add_problem(std::vector<std::string>& problems, fmt::format_string<Args...> text, Args&&... args) {
  problems.push_back(problems.size() < kListedMax ? fmt::format(text, std::forward<Args>(args)...) : "");
}

/// A token for a message: its first 100 bytes.
std::string shortened(const std::string& token);

}  // namespace accel::sources
