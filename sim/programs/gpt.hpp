#pragma once

#include <memory>

#include "sim/programs/model_config.hpp"
#include "sim/programs/network.hpp"

namespace accel::programs {

inline constexpr std::int64_t kNumBytes = 256;  // the vocabulary: text is read byte by byte

/// A decoder-only transformer over bytes, as GPT-2: (B, T) int64 with T up to config.block_size -> (B, T, 256), at each place
/// the logits of the next byte. Norms before attention and feed-forward, GELU by tanh; the embedding of bytes is the output
/// layer too.
///
/// Source: github.com/karpathy/nanoGPT, model.py; properties/oracle/gpt.py.
std::shared_ptr<Network> make_gpt(const ModelConfig& config);

}  // namespace accel::programs
