#pragma once

#include <cstdint>
#include <string>

#include "sim/programs/experiments/experiment.hpp"

namespace accel::models {
class Model;
}

namespace accel::programs {

/// Generates text with a trained language model and returns it with the prompt. Bytes are drawn one by one from the
/// `top_k` most likely ones, each given the `block_size` bytes before it. The text ends early if logits are not finite.
///
/// Draws come from a separate generator, in full precision and evaluation mode, so that no random stream of the
/// training changes. Thread rule: the network's rank. Source: github.com/karpathy/nanoGPT, model.py, generate;
/// properties/oracle/gpt.py.
std::string write_text(models::Model& network, std::int64_t block_size, const TextGenerationConfig& config);

/// Returns the text with U+FFFD in place of what terminals cannot show: bytes that are not UTF-8, and control
/// characters except tabs and line feeds. An untrained model writes any bytes.
std::string printable(const std::string& text);

}  // namespace accel::programs
