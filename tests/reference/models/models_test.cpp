// The networks of the built-in tasks: what they depend on, their parameters, and that generating text does not
// disturb training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
#include "reference/rank_local/random.hpp"
#include "sim/programs/experiments/task.hpp"
#include "sim/programs/experiments/text_generation.hpp"
#include "tests/support/torch.hpp"

namespace accel::programs {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr std::int64_t kBlock = 8;

models::GptOptions small_gpt() { return {.block_size = kBlock, .layers = 2, .heads = 3, .width = 12}; }

std::int64_t num_parameters(const models::Model& network) {
  std::int64_t count = 0;
  for (const auto& parameter : network.parameters()) count += parameter.numel();
  return count;
}

std::shared_ptr<models::LanguageModel> seeded_gpt(const models::GptOptions& options = small_gpt()) {
  const GeneratorScope scope(make_generator(5));
  return models::gpt(options);
}

// --- gpt -------------------------------------------------------------------------------------------------------------

// Causality: if later bytes leaked into earlier logits, the loss would be far too good and generation useless.
TEST(GptTest, LaterBytesDoNotChangeEarlierLogits) {
  const auto network = seeded_gpt();
  const auto text = torch::arange(kBlock).unsqueeze(0);
  auto changed = text.clone();
  changed[0][5] = 200;
  const auto before = network->forward(text), after = network->forward(changed);
  EXPECT_EQ(before.sizes(), at::IntArrayRef({1, kBlock, 256}));
  EXPECT_TRUE(at::equal(before.slice(1, 0, 5), after.slice(1, 0, 5)));
  EXPECT_FALSE(at::equal(before.select(1, 5), after.select(1, 5)));
  EXPECT_FALSE(at::equal(before.select(1, 7), after.select(1, 7))) << "the last byte sees all before it";
}

// All bytes of the text are equal, so only the position can make a difference.
TEST(GptTest, TheLogitsDependOnThePosition) {
  const auto logits = seeded_gpt()->forward(torch::full({1, kBlock}, 65, torch::kLong));
  EXPECT_FALSE(at::equal(logits.select(1, 0), logits.select(1, 1)));
}

TEST(GptTest, TextLongerThanABlockIsRejected) {
  EXPECT_THROW(seeded_gpt()->forward(torch::zeros({1, kBlock + 1}, torch::kLong)), ArgumentError);
}

TEST(GptTest, TheOutputLayerSharesTheEmbedding) {
  const auto network = seeded_gpt();
  // The count includes the embedding once, which shows that it is tied.
  EXPECT_EQ(num_parameters(*network), 2 * (12 * 12 * 12 + 13 * 12) + (256 + kBlock) * 12 + 2 * 12);
  network->forward(torch::zeros({1, 3}, torch::kLong)).sum().backward();
  const at::Tensor embedding = network->named_parameters()["byte_embedding.weight"];
  EXPECT_GT(embedding.grad()[17].abs().sum().item<double>(), 0.0)
      << "a byte that is not in the text, but might come next";
}

TEST(GptTest, WithoutBiasNoLayerHasABias) {
  auto config = small_gpt();
  config.bias = false;
  for (const auto& item : seeded_gpt(config)->named_parameters())
    EXPECT_FALSE(item.key().ends_with("bias")) << item.key();
}

// GPT-2 scales residual projections by 1 / sqrt(2 * layers), so that activations do not grow with depth.
TEST(GptTest, InitialWeightsAreSmallAndResidualProjectionsSmaller) {
  auto config = small_gpt();
  config.width = 96;
  config.layers = 8;
  for (const auto& item : seeded_gpt(config)->named_parameters()) {
    if (item.value().dim() == 1) {
      EXPECT_TRUE((item.value() == (item.key().ends_with("bias") ? 0.0 : 1.0)).all().item<bool>()) << item.key();
      continue;
    }
    const double expected = item.key().ends_with("projection.weight") ? 0.02 / 4 : 0.02;
    const double error =
        6 * expected / std::sqrt(2.0 * static_cast<double>(item.value().numel()));  // six standard errors
    EXPECT_NEAR(item.value().std().item<double>(), expected, error) << item.key();
  }
}

// Evaluation has to be repeatable.
TEST(GptTest, DropoutActsInTrainingOnly) {
  auto config = small_gpt();
  config.dropout = 0.5;
  const auto network = seeded_gpt(config);
  const auto text = torch::arange(kBlock).unsqueeze(0);
  EXPECT_FALSE(at::equal(network->forward(text), network->forward(text)));
  network->eval();
  EXPECT_TRUE(at::equal(network->forward(text), network->forward(text)));
}

// --- images ----------------------------------------------------------------------------------------------------------

// Checkpoints are exchanged with Python by name.
TEST(ImageNetworkTest, ParametersHaveTheNamesOfPythonsSequential) {
  EXPECT_THAT(models::mlp({})->named_parameters().keys(), ElementsAre("1.weight", "1.bias", "4.weight", "4.bias"));
  EXPECT_THAT(models::cnn({})->named_parameters().keys(),
              ElementsAre("0.weight", "0.bias", "3.weight", "3.bias", "8.weight", "8.bias"));
}

// --- written text ----------------------------------------------------------------------------------------------------

TEST(WriteTextTest, TheSeedDeterminesTheText) {
  const auto network = seeded_gpt();
  const TextGenerationConfig config{.length = 50, .prompt = "The ", .top_k = 256, .seed = 1};
  auto other = config;
  other.seed = 2;
  const auto text = write_text(*network, kBlock, config);
  EXPECT_THAT(text, StartsWith("The "));
  EXPECT_EQ(text.size(), 54u);
  EXPECT_EQ(write_text(*network, kBlock, config), text);
  EXPECT_NE(write_text(*network, kBlock, other), text);
}

// Otherwise training with samples of text in between would differ from training without.
TEST(WriteTextTest, TextIsWrittenWithoutTheRanksGenerator) {
  const auto network = seeded_gpt();
  const GeneratorScope scope(make_generator(9));
  const auto before = default_generator().get_state();
  write_text(*network, kBlock, {.length = 5});
  EXPECT_TRUE(at::equal(default_generator().get_state(), before));
}

// Then neither the temperature nor the seed may matter.
TEST(WriteTextTest, TopKOfOneIsTheMostLikelyByte) {
  const auto network = seeded_gpt();
  const auto text = write_text(*network, kBlock, {.length = 3, .prompt = "a", .top_k = 1, .seed = 1});
  EXPECT_EQ(write_text(*network, kBlock, {.length = 3, .prompt = "a", .temperature = 5, .top_k = 1, .seed = 8}), text);
  const auto likeliest = network->forward(torch::full({1, 1}, 'a', torch::kLong)).argmax(-1).item<std::int64_t>();
  EXPECT_EQ(static_cast<unsigned char>(text[1]), likeliest);
}

// A diverged model must not make the program crash or print garbage.
TEST(WriteTextTest, LogitsThatAreNotFiniteEndTheText) {
  const auto network = seeded_gpt();
  {
    const torch::NoGradGuard no_grad;
    network->parameters().front().fill_(std::nan(""));
  }
  EXPECT_EQ(write_text(*network, kBlock, {.length = 5, .prompt = "So"}), "So");
}

// An untrained model emits escape sequences, which would change the state of the terminal.
TEST(PrintableTest, UnprintableBytesAreReplaced) {
  EXPECT_EQ(printable("a\xc3\xa4\tz\n"), "a\xc3\xa4\tz\n");
  EXPECT_EQ(printable("a\xffz"), "a\xef\xbf\xbdz");
  EXPECT_EQ(printable("a\x1b[2J\r\x7f"), "a\xef\xbf\xbd[2J\xef\xbf\xbd\xef\xbf\xbd");
}

// --- experiment files ------------------------------------------------------------------------------------------------

class ShippedExperimentTest : public ::testing::TestWithParam<std::string> {};

// The comments of the shipped experiments are documentation and can become out of date.
TEST_P(ShippedExperimentTest, TheNumberOfParametersIsTheOneInItsComment) {
  const auto path = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/train/" + GetParam();
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  std::smatch match;
  const auto text = content.str();
  ASSERT_TRUE(std::regex_search(text, match, std::regex("([0-9,]+) parameters")));
  const auto digits = std::regex_replace(match[1].str(), std::regex(","), "");
  const auto overrides =
      GetParam() == "cifar_like.yaml" ? std::vector<std::string>{"model.width=64"} : std::vector<std::string>{};
  const auto task = load_task(read_experiment(path, overrides, /*num_ranks=*/1));
  EXPECT_EQ(std::to_string(num_parameters(*task.make_model(DeviceMesh()))), digits);
}

INSTANTIATE_TEST_SUITE_P(Files, ShippedExperimentTest,
                         ::testing::Values("char_gpt_10m.yaml", "char_gpt_124m.yaml", "char_gpt_350m.yaml",
                                           "char_llama.yaml", "cifar_like.yaml"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('.')); });

}  // namespace
}  // namespace accel::programs
