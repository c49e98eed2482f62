#include "reference/sources/tokenizer/tokenizer.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"
#include "reference/files/mapped_file.hpp"
#include "reference/sources/tokenizer/byte_level.hpp"
#include "reference/sources/tokenizer/normalization.hpp"
#include "reference/sources/tokenizer/split_pattern.hpp"
#include "reference/sources/tokenizer/utf8.hpp"
#include "reference/sources/tokenizer/vocabulary.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

// A class and not the members of Tokenizer, so that copies share it.
class Tokenizer::Parts {
 public:
  using Ids = std::vector<std::int64_t>;

  Parts(sources::TokenizerFile file, std::vector<std::string>& problems, std::vector<std::string>& warnings)
      : file_(std::move(file)),
        model_(file_, problems),
        added_(file_, model_, problems, warnings),
        before_normalization_(added_.tokens(/*normalized=*/false)),
        after_normalization_(added_.tokens(/*normalized=*/true)),
        words_(sources::to_pcre2(sources::kGpt2Pattern, problems), {}) {
    if (file_.is_nfc) sources::to_nfc("");  // throws in a build without utf8proc, before the first text
    file_.vocab = {};                       // the model has them now
    file_.merges = {};
  }

  [[nodiscard]] Ids encode(std::string_view text, const EncodeOptions& options) const {
    const auto invalid = sources::first_invalid_utf8(text);
    check_argument(!invalid, "encode: byte {} of the text is not UTF-8; expected UTF-8; convert the text",
                   invalid.value_or(0));
    Ids ids;
    if (options.add_special_tokens) ids.assign(file_.prefix.begin(), file_.prefix.end());
    for (const auto& part : before_normalization_.split(text)) {
      if (part.token)
        ids.push_back(*part.token);
      else if (file_.is_nfc)
        encode_normalized(sources::to_nfc(part.text), ids);
      else
        encode_normalized(part.text, ids);
    }
    if (options.add_special_tokens) ids.insert(ids.end(), file_.suffix.begin(), file_.suffix.end());
    return ids;
  }

  [[nodiscard]] std::string decode(const Ids& ids, const DecodeOptions& options) const {
    std::vector<std::string> tokens;
    std::vector<sources::DecodedToken> pieces;
    for (const auto id : ids) {
      const auto* token = token_of(id);
      if (token == nullptr || (options.skip_special_tokens && added_.is_special(*token))) continue;
      if (file_.is_byte_level_decoder)
        pieces.push_back(piece_of(static_cast<sources::TokenId>(id), *token));
      else
        tokens.push_back(*token);
    }
    if (file_.is_byte_level_decoder) return sources::joined_text(pieces);
    return sources::replace_invalid_utf8(fmt::format("{}", fmt::join(tokens, " ")));
  }

  [[nodiscard]] const std::string* token_of(std::int64_t id) const {
    check_argument(id >= 0 && id <= UINT32_MAX, "token id {}: expected a number from 0 to {}", id, UINT32_MAX);
    const auto* added = added_.token(static_cast<sources::TokenId>(id));
    return added != nullptr ? added : model_.token(static_cast<sources::TokenId>(id));
  }

  [[nodiscard]] std::optional<std::int64_t> id_of(const std::string& token) const {
    const auto added = added_.id(token);
    return added ? added : model_.id(token);
  }

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(model_.size() + added_.num_new()); }

 private:
  // The byte map is for tokens of the model. An added token that the model has too may be either.
  [[nodiscard]] sources::DecodedToken piece_of(sources::TokenId id, const std::string& token) const {
    const bool is_added = added_.token(id) != nullptr;
    const auto* const of_model = model_.token(id);
    if (is_added && (of_model == nullptr || *of_model != token)) return {.bytes = token};
    sources::DecodedToken piece{.bytes = sources::from_byte_level(token).value_or(token)};
    if (is_added) piece.text = token;
    return piece;
  }

  void encode_normalized(std::string_view text, Ids& ids) const {
    for (const auto& part : after_normalization_.split(text)) {
      if (part.token)
        ids.push_back(*part.token);
      else
        encode_pieces(part.text, 0, ids);
    }
  }

  // Splits by one splitter after another, and then by ByteLevel.
  void encode_pieces(std::string_view text, std::size_t splitter, Ids& ids) const {
    if (splitter < file_.splitters.size()) {
      for (const auto piece : file_.splitters[splitter].split(text)) encode_pieces(piece, splitter + 1, ids);
    } else if (file_.add_prefix_space && !text.starts_with(' ')) {
      encode_words(" " + std::string(text), ids);
    } else {
      encode_words(text, ids);
    }
  }

  void encode_words(std::string_view text, Ids& ids) const {
    if (!file_.use_regex) return model_.encode(text, ids);
    for (const auto word : words_.split(text)) model_.encode(word, ids);
  }

  sources::TokenizerFile file_;
  sources::BytePairModel model_;
  sources::AddedVocabulary added_;
  sources::AddedTokenSearch before_normalization_, after_normalization_;
  sources::TextSplitter words_;
};

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::from_file(const std::string& path) {
  auto file = sources::read_tokenizer_file(MappedFile(path).read(), path);
  std::vector<std::string> problems, warnings;
  auto parts = std::make_shared<const Parts>(std::move(file), problems, warnings);
  check_config(problems.empty(), "{}: the vocabulary is damaged:\n  {}", path, listed(problems, "\n  "));
  if (!warnings.empty())
    warn_once(fmt::format("{}: added_tokens: {}, as in tokenizers; tokens that the model lacks follow its own", path,
                          listed(warnings, ", ")));
  return Tokenizer(std::move(parts));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return parts_->encode(text, options);
}

std::vector<std::vector<std::int64_t>> Tokenizer::encode_batch(const std::vector<std::string>& texts,
                                                               const EncodeOptions& options) const {
  std::vector<std::vector<std::int64_t>> result;
  for (const auto& text : texts) result.push_back(parts_->encode(text, options));
  return result;
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& ids, const DecodeOptions& options) const {
  return parts_->decode(ids, options);
}

std::optional<std::int64_t> Tokenizer::token_to_id(const std::string& token) const { return parts_->id_of(token); }

std::optional<std::string> Tokenizer::id_to_token(std::int64_t id) const {
  const auto* token = parts_->token_of(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

std::int64_t Tokenizer::vocab_size() const { return parts_->size(); }

}  // namespace accel
