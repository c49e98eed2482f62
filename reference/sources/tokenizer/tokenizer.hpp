#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Byte-level BPE tokenizers (GPT-2, Llama 3, Qwen and others), read from the file of Hugging Face's `tokenizers`.
///
///     const auto tokenizer = accel::Tokenizer::from_file("tokenizer.json");
///     const auto ids = tokenizer.encode("Hello world");      // std::vector<std::int64_t>
///     tokenizer.decode(ids);                                 // "Hello world"
///
/// The results are those of the Python package. Supported are: the model BPE; the pre-tokenizers ByteLevel, and Split
/// and Digits before it; added tokens; the normalizer NFC; the post-processors TemplateProcessing and ByteLevel; the
/// decoder ByteLevel. A file with other parts is rejected.
/// Thread rule: any number of readers; copies share the vocabulary.
namespace accel {

struct EncodeOptions {
  bool add_special_tokens = true;  ///< those of the post-processor, such as `<s>` at the start
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

class Tokenizer {
 public:
  /// Throws ConfigError, which names the file and lists everything that is wrong or unsupported.
  static Tokenizer from_file(const std::string& path);

  /// Throws ArgumentError, which contains the byte offset, if `text` is not valid UTF-8.
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  [[nodiscard]] std::vector<std::vector<std::int64_t>> encode_batch(const std::vector<std::string>& texts,
                                                                    const EncodeOptions& options = {}) const;

  /// Ids without a token are left out, and bytes that are not valid UTF-8 are replaced with U+FFFD, as in Python.
  [[nodiscard]] std::string decode(const std::vector<std::int64_t>& ids, const DecodeOptions& options = {}) const;

  [[nodiscard]] std::optional<std::int64_t> token_to_id(const std::string& token) const;
  [[nodiscard]] std::optional<std::string> id_to_token(std::int64_t id) const;
  /// The number of tokens, including added ones.
  [[nodiscard]] std::int64_t vocab_size() const;

 private:
  class Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

}  // namespace accel
