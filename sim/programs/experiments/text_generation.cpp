// Samples text from a trained model, as an evaluation that people can judge. Draws happen on the CPU, so that the text
// does not depend on the device's random generator.
#include "sim/programs/experiments/text_generation.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "reference/models/model.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::programs {
namespace {

at::Tensor last_bytes(const std::string& text, std::int64_t block_size) {
  const auto length = std::min(static_cast<std::int64_t>(text.size()), block_size);
  auto bytes = at::empty({1, length}, at::kLong);
  std::transform(text.end() - length, text.end(), bytes.mutable_data_ptr<std::int64_t>(),
                 [](char byte) { return static_cast<unsigned char>(byte); });
  return bytes;
}

// Returns the probabilities of the next byte, zero for all but the top_k most likely. Ties with the last of these stay
// in, as in nanoGPT.
at::Tensor probabilities_of(const at::Tensor& logits, const TextGenerationConfig& config) {
  const auto scaled = logits / config.temperature;
  const auto likeliest = std::get<0>(at::topk(scaled, std::min(config.top_k, scaled.size(-1))));
  return at::softmax(scaled.masked_fill(scaled < likeliest.select(-1, -1), -std::numeric_limits<double>::infinity()),
                     -1);
}

}  // namespace

std::string write_text(models::Model& network, std::int64_t block_size, const TextGenerationConfig& config) {
  const c10::NoGradGuard no_grad;
  network.eval();
  const auto device = network.parameters().front().device();
  const auto generator = make_generator(config.seed);
  auto text = config.prompt;
  for (std::int64_t written = 0; written < config.length; ++written) {
    const auto logits = network.forward(last_bytes(text, block_size).to(device)).select(0, 0).select(0, -1).cpu();
    // multinomial throws for NaN, and a diverged training should still end with its summary.
    if (!logits.isfinite().all().item<bool>()) break;
    text += static_cast<char>(
        at::multinomial(probabilities_of(logits, config), 1, /*replacement=*/false, generator).item<std::int64_t>());
  }
  return text;
}

std::string printable(const std::string& text) {
  constexpr const char* kReplacement = "\xef\xbf\xbd";
  // nlohmann's serializer replaces invalid UTF-8 by U+FFFD, so that no decoder of our own is needed.
  const auto utf8 =
      nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>();
  std::string shown;
  for (const char byte : utf8) {
    const bool is_control = (static_cast<unsigned char>(byte) < ' ' && byte != '\n' && byte != '\t') || byte == '\x7f';
    shown += is_control ? std::string(kReplacement) : std::string(1, byte);
  }
  return shown;
}

}  // namespace accel::programs
