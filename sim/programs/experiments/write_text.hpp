#pragma once

#include <cstdint>
#include <string>

#include "sim/programs/experiments/experiment.hpp"

namespace accel::models {
class Model;
}

namespace accel::programs {

/// What a trained language model writes behind a prompt, prompt included: bytes, drawn one by one from the `top_k`
/// likeliest. Each sees the `block_size` bytes before it. The text ends early at logits that are not finite.
///
/// Draws come from a generator of its own, in full precision and evaluation mode, so that no stream of the training is
/// touched. Thread rule: the network's rank. Source: github.com/karpathy/nanoGPT, model.py, generate;
/// properties/oracle/gpt.py.
std::string write_text(models::Model& network, std::int64_t block_size, const WritingConfig& config);

/// The text with what no terminal shows, bytes that are not UTF-8 and control characters but tabs and ends of lines,
/// replaced by U+FFFD: an untrained model writes any bytes.
std::string printable(const std::string& text);

}  // namespace accel::programs
