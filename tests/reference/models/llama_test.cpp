// Llamas that transformers saved: recorded files with their logits (properties/oracle/models.py --record), and
// config.json in all its versions. The live comparison has the bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "reference/checkpoint/module_state.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/models/gpt.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string recorded(const std::string& name) {
  return std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/tests/reference/models/recorded/" + name;
}

std::shared_ptr<LanguageModel> loaded(const std::string& folder) {
  const auto options = read_llama_config(folder);
  auto model = init_empty_weights([&] { return gpt(options); });
  load_checkpoint_in_model(*model, folder, {.strict = true});
  return model;
}

// CPUs sum in different orders: sums of at most 24 float32 terms below 4 are rounded by up to 24 * 4 * 2^-24 = 6e-6,
// and a model adds a few of them.
constexpr double kTolerance = 5e-5;

void expect_near(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LT((found - expected).abs().max().item<double>(), kTolerance);
}

class RecordedLlamaTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RecordedLlamaTest, LogitsLossAndGradientAreTransformers) {
  const auto model = loaded(recorded(GetParam()));
  const SafetensorsFile answers(recorded(GetParam() + "_answers.safetensors"));
  const auto tokens = answers.tensor("tokens");
  expect_near(model->forward(tokens), answers.tensor("logits"));
  EXPECT_GT(answers.tensor("logits").abs().max().item<double>(), 0.5) << "otherwise the tolerance hides differences";
  const auto loss = model->forward(tokens, at::cat({tokens.slice(1, 1), torch::full({2, 1}, -100, torch::kLong)}, 1));
  expect_near(loss.detach(), answers.tensor("loss"));
  loss.backward();
  expect_near(model->parameters().front().grad(), answers.tensor("gradient"));
}

// Files of this library must load in transformers, which needs the same names, shapes and dtypes.
TEST_P(RecordedLlamaTest, SavedTensorsAreThoseOfTransformers) {
  const auto model = loaded(recorded(GetParam()));
  const auto theirs = read_weights(recorded(GetParam()));
  const auto ours = checkpoint::state_dict_of(*model);
  EXPECT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : ours) {
    ASSERT_TRUE(theirs.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, theirs.at(name).load())) << name;
  }
}

// Blocks are units of their own, which are read when they are called; everything else is one unit.
TEST_P(RecordedLlamaTest, PartsOnDiskGiveTheSameBits) {
  const auto folder = recorded(GetParam());
  const auto options = read_llama_config(folder);
  const auto tokens = SafetensorsFile(recorded(GetParam() + "_answers.safetensors")).tensor("tokens");
  const torch::NoGradGuard no_grad;
  const auto expected = loaded(folder)->forward(tokens);
  auto empty = init_empty_weights([&] { return gpt(options); });
  const DeviceMap map{{"", MapDevice("disk")}};
  auto model = load_checkpoint_and_dispatch(empty, folder, {.device_map = map});
  EXPECT_TRUE(at::equal(model(tokens), expected));
  EXPECT_EQ(model.statistics().num_loads, options.layers + 1);
}

INSTANTIATE_TEST_SUITE_P(Folders, RecordedLlamaTest, ::testing::Values("llama3", "tied"),
                         [](const auto& info) { return info.param; });

// --- config.json -----------------------------------------------------------------------------------------------------

class LlamaConfigTest : public ::testing::Test {
 protected:
  std::string written(const std::string& keys) {
    return folder_.write("config.json",
                         "{\n  \"model_type\": \"llama\"" + (keys.empty() ? "" : ",\n" + keys) + "\n}\n");
  }
  std::string error(const std::string& keys) {
    return testing::message_of<ConfigError>([&] { read_llama_config(written(keys)); });
  }
  testing::TemporaryFolder folder_;
};

// Version 4 of transformers wrote only the values that differ from the defaults.
TEST_F(LlamaConfigTest, MissingKeysHaveTheDefaultsOfLlamaConfig) {
  const auto options = read_llama_config(written(""));
  EXPECT_EQ(options.vocab_size, 32000);
  EXPECT_EQ(options.width, 4096);
  EXPECT_EQ(options.feed_forward_width, 11008);
  EXPECT_EQ(options.layers, 32);
  EXPECT_EQ(sizes_of(options).key_value_heads, 32);
  EXPECT_EQ(sizes_of(options).head_width, 128);
  EXPECT_EQ(options.norm_eps, 1e-6);
  EXPECT_FALSE(options.tied_output);
  EXPECT_FALSE(options.bias);
  EXPECT_EQ(options.rope_parameters.rope_theta, 10000.0);
}

TEST_F(LlamaConfigTest, RotaryParametersOfBothVersionsAreRead) {
  for (const auto* keys :
       {R"("rope_theta": 5e5, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
        R"("rope_parameters": {"rope_theta": 500000, "rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 64})"}) {
    const auto rope = read_llama_config(written(keys)).rope_parameters;
    EXPECT_EQ(rope.rope_theta, 500000.0);
    EXPECT_EQ(rope.rope_type, "llama3");
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 64);
  }
  EXPECT_EQ(read_llama_config(written(R"("rope_scaling": null)")).rope_parameters.rope_type, "default");
  EXPECT_EQ(read_llama_config(written(R"("pad_token_id": -1)")).padding_token, 31999) << "as in Python";
}

TEST_F(LlamaConfigTest, AllThatIsUnsupportedIsInOneMessage) {
  EXPECT_THAT(error(R"("hidden_act": "gelu", "attention_bias": true, "attention_dropout": 0.1, "num_hidden_layers": 0,
"rope_scaling": {"rope_type": "yarn", "beta": 1})"),
              AllOf(HasSubstr("config.json:3: hidden_act: expected silu, got 'gelu'"),
                    HasSubstr("mlp_bias: false, but attention_bias is true"), HasSubstr("attention_dropout: dropout"),
                    HasSubstr("num_hidden_layers: expected 1 or more, got '0'"),
                    HasSubstr("config.json:4: rope_scaling.rope_type: expected default, linear or llama3, got 'yarn'"),
                    HasSubstr("rope_scaling.beta: unknown key")));
  EXPECT_THAT(error(R"("rope_scaling": {"rope_type": "llama3", "factor": 2})"),
              AllOf(HasSubstr("rope_scaling.low_freq_factor: missing"), Not(HasSubstr("scaling.factor"))));
  EXPECT_THAT(error(R"("num_attention_heads": 3, "num_key_value_heads": 2)"),
              AllOf(HasSubstr("num_attention_heads: width 4096 is not divisible by 3 heads"),
                    HasSubstr("num_key_value_heads: 3 heads are not divisible by 2 key_value_heads")));
  EXPECT_THAT(testing::message_of<ConfigError>(
                  [&] { read_llama_config(folder_.write("config.json", R"({"model_type": "mistral"})")); }),
              HasSubstr("model_type: expected llama, got 'mistral'"));
  EXPECT_THAT(testing::message_of<ConfigError>([&] { read_llama_config(folder_.path("none.json")); }),
              HasSubstr("none.json: no such file; expected a config.json of transformers"));
}

}  // namespace
}  // namespace accel::models
