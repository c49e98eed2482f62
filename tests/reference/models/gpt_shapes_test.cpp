// The options of gpt, each alone and together: names, sizes, what they change, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/gpt_layers.hpp"
#include "reference/models/rotary_embedding.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GptOptions small() { return {.vocab_size = 20, .block_size = 16, .layers = 2, .heads = 4, .width = 24}; }

GptOptions llama() {
  auto options = small();
  options.bias = false;
  options.positions = "rotary";
  options.norm = "rms_norm";
  options.feed_forward = "swiglu";
  options.key_value_heads = 2;
  options.tied_output = false;
  return options;
}

std::shared_ptr<LanguageModel> seeded(const GptOptions& options) {
  const GeneratorScope scope(make_generator(5));
  return gpt(options);
}

at::Tensor tokens() { return torch::arange(16).remainder(20).unsqueeze(0); }

// One option changed at a time, with its name for messages.
std::vector<std::pair<std::string, GptOptions>> single_options() {
  std::vector<std::pair<std::string, GptOptions>> all(8, {"", small()});
  std::size_t next = 0;
  const auto with = [&](const std::string& name, auto&& change) {
    all.at(next).first = name;
    change(all.at(next++).second);
  };
  with("rotary", [](auto& options) { options.positions = "rotary"; });
  with("rms_norm", [](auto& options) { options.norm = "rms_norm"; });
  with("swiglu", [](auto& options) { options.feed_forward = "swiglu"; });
  with("feed_forward_width", [](auto& options) { options.feed_forward_width = 5; });
  with("key_value_heads", [](auto& options) { options.key_value_heads = 2; });
  with("head_width", [](auto& options) { options.head_width = 10; });
  with("untied", [](auto& options) { options.tied_output = false; });
  with("norm_eps", [](auto& options) { options.norm_eps = 0.5; });
  return all;
}

// Causality must hold for each option; an attention without a mask would learn to copy its target.
TEST(GptOptionsTest, EachOptionChangesTheLogitsAndKeepsCausality) {
  auto all = single_options();
  all.emplace_back("llama", llama());
  const auto standard = seeded(small())->forward(tokens());
  for (const auto& [name, options] : all) {
    const auto network = seeded(options);
    auto changed = tokens();
    changed[0][5] = 1;
    const auto before = network->forward(tokens()), after = network->forward(changed);
    EXPECT_EQ(before.sizes(), at::IntArrayRef({1, 16, 20})) << name;
    EXPECT_TRUE(at::equal(before.slice(1, 0, 5), after.slice(1, 0, 5))) << name;
    EXPECT_FALSE(at::equal(before.slice(1, 5), after.slice(1, 5))) << name;
    EXPECT_FALSE(at::equal(before, standard)) << name;
  }
}

// Not a parameter may be left out: an unused one would wait for its gradient forever under DDP.
TEST(GptOptionsTest, EveryParameterReceivesAGradient) {
  auto all = single_options();
  all.emplace_back("llama", llama());
  for (const auto& [name, options] : all) {
    const auto network = seeded(options);
    network->forward(tokens()).square().sum().backward();
    for (const auto& item : network->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << name << " " << item.key();
      EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << name << " " << item.key();
    }
  }
}

// Checkpoints of existing experiments have these names.
TEST(GptOptionsTest, TheDefaultHasItsOwnNames) {
  auto options = small();
  options.layers = 1;
  EXPECT_THAT(seeded(options)->named_parameters().keys(),
              ElementsAre("byte_embedding.weight", "position_embedding.weight", "blocks.0.attention_norm.weight",
                          "blocks.0.attention_norm.bias", "blocks.0.attention.queries_keys_values.weight",
                          "blocks.0.attention.queries_keys_values.bias", "blocks.0.attention.projection.weight",
                          "blocks.0.attention.projection.bias", "blocks.0.feed_forward_norm.weight",
                          "blocks.0.feed_forward_norm.bias", "blocks.0.feed_forward.expansion.weight",
                          "blocks.0.feed_forward.expansion.bias", "blocks.0.feed_forward.projection.weight",
                          "blocks.0.feed_forward.projection.bias", "norm.weight", "norm.bias"));
}

TEST(GptOptionsTest, ALlamaHasTransformersNames) {
  auto options = llama();
  options.layers = 1;
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(
      seeded(options)->named_parameters().keys(),
      ElementsAre("model.embed_tokens.weight", layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                  layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight", layer + "mlp.gate_proj.weight",
                  layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight", layer + "input_layernorm.weight",
                  layer + "post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"));
}

// Position p and a distance d: the product of rotated vectors depends on d alone.
TEST(RotaryEmbeddingTest, ProductsDependOnTheDistanceOnly) {
  RotaryEmbedding rotary(8, {});
  const auto query = torch::rand({8}), key = torch::rand({8});
  const auto rotation = rotary.of_positions(at::arange(40), query);
  const auto along = [&](const at::Tensor& vector) { return rotated(vector.expand({1, 1, 40, 8}), rotation)[0][0]; };
  const auto products = along(query).matmul(along(key).t());
  for (const std::int64_t distance : {0, 3, 17}) {
    const auto diagonal = products.diagonal(-distance);
    // Angles up to 40 are rounded to 2^-19, and eight products of numbers below 1 are summed.
    EXPECT_LT((diagonal - diagonal[0]).abs().max().item<double>(), 8 * 0x1p-19) << distance;
  }
  EXPECT_GT((products.select(1, 0) - products[0][0]).abs().max().item<double>(), 0.1);
}

// The gradient through the rotated halves comes first, so the sum has its memory format and not the other's, as in
// transformers. A bias's gradient, summed in that order, otherwise differs in the last bit (fp8, 2 ranks).
TEST(RotaryEmbeddingTest, TheGradientIsContiguousThoughThatOfTheResultIsNot) {
  RotaryEmbedding rotary(8, {});
  const auto values = at::randn({2, 3, 5, 8}).requires_grad_();
  const auto rotation = rotary.of_positions(at::arange(5), values);
  const auto gradient = at::randn({2, 3, 8, 5}).transpose(2, 3);
  const auto inner = values * 1;
  bool is_contiguous = false;
  inner.register_hook([&](const at::Tensor& arrived) { is_contiguous = arrived.is_contiguous(); });
  rotated(inner, rotation).backward(gradient);
  EXPECT_TRUE(is_contiguous);
}

TEST(RotaryEmbeddingTest, ScalingSlowsRotation) {
  const auto standard = rotary_frequencies(32, {}),
             linear = rotary_frequencies(32, {.rope_type = "linear", .factor = 4}),
             llama3 = rotary_frequencies(32, {.rope_type = "llama3", .factor = 4});
  EXPECT_TRUE(at::equal(linear, standard / 4));
  EXPECT_TRUE(at::equal(llama3.slice(0, 0, 10), standard.slice(0, 0, 10))) << "wavelengths far below 8192";
  EXPECT_TRUE(at::equal(llama3.slice(0, 14), standard.slice(0, 14) / 4)) << "wavelengths above 8192";
  EXPECT_TRUE((llama3.slice(0, 1) < llama3.slice(0, 0, -1)).all().item<bool>());
}

// FSDP casts buffers with the parameters: frequencies rounded to bfloat16 would be wrong by up to 0.4 %.
TEST(RotaryEmbeddingTest, FrequenciesAreNoBufferThatFsdpRounds) { EXPECT_TRUE(seeded(llama())->buffers().empty()); }

// Float32 inside would leave errors of 1e-8.
TEST(GptOptionsTest, Float64LosesNoPrecision) {
  auto options = llama();
  options.dtype = "float64";
  options.norm_eps = 0;
  const auto network = seeded(options);
  for (const auto& parameter : network->parameters()) EXPECT_EQ(parameter.scalar_type(), at::kDouble);
  const auto values = torch::randn({5, 24}, at::kDouble);
  const auto normed = make_norm(options, DeviceMesh())->forward({values}).local;
  EXPECT_LT((normed.square().mean(-1) - 1).abs().max().item<double>(), 1e-14);
  const auto cosines = RotaryEmbedding(4, {}).of_positions(at::arange(9), values)[0][0];
  EXPECT_NEAR(cosines[8][1].item<double>(), std::cos(8 / std::sqrt(10000.0)), 1e-15);
}

// With one chunk the bits are those of the logits' cross entropy, see linear_cross_entropy.
TEST(GptOptionsTest, TheLossOfTargetsIsTheCrossEntropyOfTheLogits) {
  for (const auto& options : {small(), llama()}) {
    const auto network = seeded(options), same = seeded(options);
    const auto targets = tokens().roll(-1, 1);
    const auto loss = network->forward(tokens(), targets);
    const auto expected = torch::nn::functional::cross_entropy(same->forward(tokens()).flatten(0, 1), targets[0]);
    EXPECT_TRUE(at::equal(loss, expected)) << loss << expected;
    loss.backward();
    expected.backward();
    for (const auto& item : network->named_parameters())
      EXPECT_TRUE(at::equal(item.value().grad(), same->named_parameters()[item.key()].grad())) << item.key();
  }
}

TEST(GptOptionsTest, ThePaddingTokenIsNotTrained) {
  for (auto options : {small(), llama()}) {
    options.padding_token = 3;
    options.tied_output = false;
    const auto network = seeded(options);
    network->forward(tokens()).square().sum().backward();
    const auto embedding = network->parameters().front();
    EXPECT_EQ(embedding[3].abs().sum().item<double>(), 0.0);
    EXPECT_EQ(embedding.grad()[3].abs().sum().item<double>(), 0.0);
    EXPECT_GT(embedding.grad()[4].abs().sum().item<double>(), 0.0);
  }
}

TEST(GptOptionsTest, AllProblemsAreInOneError) {
  auto options = llama();
  options.heads = 5;
  options.layers = 0;
  options.norm = "batch_norm";
  options.padding_token = 20;
  options.rope_parameters = {.rope_type = "llama3", .low_freq_factor = 4};
  EXPECT_THAT(testing::message_of<ConfigError>([&] { gpt(options); }),
              AllOf(HasSubstr("gpt: layers: expected 1 or more, got 0"),
                    HasSubstr("gpt: norm: expected 'layer_norm' or 'rms_norm', got 'batch_norm'"),
                    HasSubstr("gpt: heads: width 24 is not divisible by 5 heads; expected a multiple of 5"),
                    HasSubstr("gpt: key_value_heads: 5 heads are not divisible by 2 key_value_heads; expected a "
                              "divisor of 5"),
                    HasSubstr("gpt: padding_token: expected a token from 0 to 19, got 20"),
                    HasSubstr("gpt: rope_parameters: low_freq_factor 4 is not below high_freq_factor 4")));
  options = llama();
  options.heads = 8;
  EXPECT_THAT(testing::message_of<ConfigError>([&] { gpt(options); }),
              HasSubstr("gpt: heads: rotary positions rotate pairs, so a head needs an even width, got 3"));
}

}  // namespace
}  // namespace accel::models
