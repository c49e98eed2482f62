#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "reference/sources/tokenizer/tokenizer.hpp"

/// Text files as samples for a language model.
///
///     const auto tokenizer = accel::Tokenizer::from_file("tokenizer.json");
///     const auto tokens = accel::tokenize_files(tokenizer, {"corpus.txt"}, {.end_of_text = "<|endoftext|>"});
///     const accel::TokenBlocks blocks(tokens, {.block_size = 128});
///     accel::DataLoader loader(blocks, {.batch_size = 32, .shuffle = true});
///     for (auto& [inputs, targets] : loader) { ... }   // (32, 128) int64 each
///
/// Thread rule: any number of readers; copies share the tokens.
namespace accel {

struct TokenizeOptions {
  bool by_line = false;            ///< each line, as TextLines has it, is a text; otherwise each file is one
  std::string end_of_text = {};    ///< a token that is appended to each text; empty: none
  bool add_special_tokens = true;  ///< those of the tokenizer's post-processor, for each text
};

/// The tokens of all texts, one after another: (n) int32. Files may be .gz; a UTF-8 byte order mark is skipped.
/// Tokenizing takes long for large files, so that a program may save the tensor in a safetensors file and start from
/// it.
///
/// Throws ConfigError if a file cannot be read, is not UTF-8 or is compressed in another way, or if an id is above
/// 2^31 - 1. Throws ArgumentError if `end_of_text` is not a token.
at::Tensor tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                          const TokenizeOptions& options = {});

struct TokenBlocksOptions {
  std::int64_t block_size = 1024;
};

/// A dataset whose sample i holds tokens [i * block_size, (i + 1) * block_size), and the token after each as its
/// target. Blocks do not overlap; an incomplete block at the end is left out.
class TokenBlocks {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  /// `tokens`: (n) int32 or int64 on the CPU. Throws ArgumentError for another tensor or a block_size below 1.
  explicit TokenBlocks(at::Tensor tokens, const TokenBlocksOptions& options = {});

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] Batch get(std::int64_t index) const;
  /// Shapes: (len(indices), block_size) int64 each.
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  at::Tensor tokens_;
  std::int64_t block_size_;
};

}  // namespace accel
