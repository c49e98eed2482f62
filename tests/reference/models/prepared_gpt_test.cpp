// The shapes of gpt under DDP, FSDP and ZeRO, with recomputed activations: on two ranks a sum does not depend on its
// order, so all trainings have the same bits.
#include <accel/accel.hpp>
#include <accel/models.hpp>
#include <accel/testing.hpp>
#include <gtest/gtest.h>

#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

models::GptOptions options_of(const std::string& shape) {
  models::GptOptions options{.vocab_size = 30, .block_size = 12, .layers = 3, .heads = 4, .width = 16};
  if (shape == "gpt2") return options;
  options.bias = false;
  options.positions = "rotary";
  options.norm = "rms_norm";
  options.feed_forward = "swiglu";
  options.feed_forward_width = 20;
  options.key_value_heads = 2;
  options.tied_output = shape == "tied_llama";
  return options;
}

struct Training {
  AcceleratorOptions options = {};
  bool fuses_loss = false;
};

// The losses of both ranks in three steps, each on its own tokens.
std::vector<std::vector<float>> losses_of(const std::string& shape, const Training& training, int num_ranks = 2) {
  return run_ranks(num_ranks, [&] {
    Accelerator accelerator(training.options);
    set_seed(3);
    auto net = models::gpt(options_of(shape));
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<float> losses;
    for (int step = 0; step < 3; ++step) {
      const auto tokens = (torch::arange(24).view({2, 12}) * 7 + accelerator.process_index() + step) % 30;
      const auto targets = (tokens + 7) % 30;
      const auto loss = training.fuses_loss
                            ? model(tokens, targets)
                            : torch::nn::functional::cross_entropy(model(tokens).flatten(0, 1), targets.flatten());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.template item<float>());
    }
    return losses;
  });
}

FullyShardedDataParallelPlugin wrapping(std::vector<std::string> classes) {
  return {.auto_wrap_policy = "TRANSFORMER_BASED_WRAP", .transformer_cls_names_to_wrap = std::move(classes)};
}

class PreparedGptTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PreparedGptTest, ShardedTrainingsHaveTheLossesOfDdp) {
  const auto expected = losses_of(GetParam(), {});
  EXPECT_NE(expected[0], expected[1]) << "ranks read different tokens";
  EXPECT_LT(expected[0][2], expected[0][0]);
  const bool is_llama = GetParam() != "gpt2";
  for (const auto& classes : {std::vector<std::string>{"Block"},
                              {"Block", is_llama ? "RotaryAttention" : "Attention"},
                              {is_llama ? "SwiGLU" : "FeedForward"}})
    EXPECT_EQ(losses_of(GetParam(), {.options = {.fsdp_plugin = wrapping(classes)}}), expected) << classes.back();
  auto recomputing = wrapping({"Block"});
  recomputing.activation_checkpointing = true;
  EXPECT_EQ(losses_of(GetParam(), {.options = {.fsdp_plugin = recomputing}}), expected);
  for (const int stage : {2, 3}) {
    const DeepSpeedPlugin plugin{
        .gradient_clipping = "0", .zero_stage = stage, .stage3_param_persistence_threshold = 0};
    EXPECT_EQ(losses_of(GetParam(), {.options = {.deepspeed_plugin = plugin}}), expected) << stage;
  }
}

// linear_cross_entropy inside the model: its weight must be gathered there, also if the output layer is a unit.
TEST_P(PreparedGptTest, TheFusedLossTrainsTheSame) {
  const auto expected = losses_of(GetParam(), {});
  EXPECT_EQ(losses_of(GetParam(), {.fuses_loss = true}), expected);
  const auto units =
      GetParam() == "llama" ? std::vector<std::string>{"Block", "Output"} : std::vector<std::string>{"Block"};
  EXPECT_EQ(losses_of(GetParam(), {.options = {.fsdp_plugin = wrapping(units)}, .fuses_loss = true}), expected);
}

TEST_P(PreparedGptTest, Bfloat16TrainsOnFourRanks) {
  const auto plain = losses_of(GetParam(), {.options = {.mixed_precision = "bf16"}}, 4);
  for (const auto& losses : plain) EXPECT_LT(losses[2], losses[0]);
  EXPECT_EQ(losses_of(GetParam(), {.options = {.mixed_precision = "bf16"}}, 4), plain) << "repeatable";
}

INSTANTIATE_TEST_SUITE_P(Shapes, PreparedGptTest, ::testing::Values("gpt2", "llama", "tied_llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace accel::testing
