#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

namespace accel::models {

struct GptOptions {
  std::int64_t vocab_size = 256;   ///< 256: the tokens are bytes
  std::int64_t block_size = 1024;  ///< the longest sequence, in tokens
  std::int64_t layers = 12, heads = 12;
  std::int64_t width = 768;  ///< embedding size; a multiple of `heads`
  double dropout = 0.0;
  bool bias = true;  ///< of linear layers and norms
};

/// A decoder-only transformer like GPT-2: (B, T) int64 with T up to block_size -> (B, T, vocab_size), the logits of the
/// next token at each position. Layer norm precedes attention and feed-forward; GELU uses the tanh approximation; the
/// token embedding is also the output layer.
///
/// Throws ArgumentError if `width` is not a multiple of `heads`; `forward` throws it for a longer sequence. Source:
/// github.com/karpathy/nanoGPT, model.py; properties/oracle/gpt.py.
std::shared_ptr<Model> gpt(const GptOptions& options);

}  // namespace accel::models
