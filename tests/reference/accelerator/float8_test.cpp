// mixed_precision "fp8": which layers compute in float8, and that they are trained. What a layer computes is
// compared with torchao in properties/oracle/recorded_float8_test.cpp.
#include <gmock/gmock.h>
#include <torch/nn/modules/transformerlayer.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/precision/float8_layers.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointwise;

// Linear layers of these widths, one after the other.
nn::Sequential chain(const std::vector<std::int64_t>& widths) {
  nn::Sequential net;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) net->push_back(nn::Linear(widths[i], widths[i + 1]));
  return net;
}

// A single rank with a fixed seed, so that two models get equal weights.
std::unique_ptr<RankContext> seeded_rank() {
  auto rank = make_single_rank();
  torch::manual_seed(3);
  return rank;
}

// torchao's kernels need dimensions that are multiples of 16. Accelerate's filter leaves out the first and the last
// layer, which are the most sensitive to rounding.
TEST(Float8Test, LayersOfMultiplesOf16ComputeInFloat8ExceptFirstAndLast) {
  const auto rank = seeded_rank();
  Accelerator accelerator({.mixed_precision = "fp8"}, *rank);
  EXPECT_THAT(accelerator.prepare(chain({16, 32, 48, 40, 16, 16})).float8_layers(), ElementsAre("1"));
  EXPECT_THAT(accelerator.prepare(chain({16, 16, 16})).float8_layers(), IsEmpty());
  EXPECT_THAT(accelerator.prepare(nn::Linear(16, 16)).float8_layers(), IsEmpty());
  EXPECT_THAT(Accelerator({.mixed_precision = "bf16"}, *rank).prepare(chain({16, 16, 16, 16})).float8_layers(),
              IsEmpty());
}

// The module itself stays in full precision, so that evaluation code of the user can compare both.
TEST(Float8Test, APreparedModelComputesInFloat8AndTheModuleItselfDoesNot) {
  const auto rank = seeded_rank();
  Accelerator accelerator({.mixed_precision = "fp8", .autocast_kwargs = {.enabled = false}}, *rank);
  auto net = chain({8, 16, 32, 8});
  auto model = accelerator.prepare(net);
  const auto x = at::randn({5, 8});
  const auto layer = [&](int i) { return std::dynamic_pointer_cast<nn::LinearImpl>(net->children().at(i)); };
  const auto& second = *layer(1);
  const auto config = std::make_shared<const Float8LinearConfig>(Float8LinearConfig{.pad_inner_dim = true});
  const auto expected = layer(2)->forward(float8_linear(layer(0)->forward(x), second.weight, second.bias, config));
  EXPECT_TRUE(model(x).equal(expected));
  EXPECT_FALSE(net->forward(x).equal(expected));
  EXPECT_TRUE(net->forward(x).allclose(expected, 0.1, 0.1)) << "float8 has two or three digits";
}

// In Accelerate's default recipe the weights in float8 belong to no optimizer and never change.
// A dropped weight would show as a loss that falls more slowly, and nothing else.
TEST(Float8Test, EveryWeightIsTrained) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "fp8"}, rank);
    auto net = chain({16, 32, 48, 16, 4});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<at::Tensor> before;
    for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
    const auto out = model(at::randn({6, 16}));
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    accelerator.backward(out.square().mean());
    optimizer.step();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(net->parameters()[i].equal(before[i])) << i;
  });
}

// The filter receives the module and its full name, as torchao's module_filter_fn does.
TEST(Float8Test, AFilterChoosesLayersByNameAndModule) {
  const auto rank = seeded_rank();
  Accelerator accelerator(
      {.mixed_precision = "fp8",
       .ao_recipe_kwargs = AORecipeKwargs{.module_filter_func =
                                              [](const nn::LinearImpl& layer, const std::string& name) {
                                                return name != "2" && layer.options.in_features() == 16;
                                              }}},
      *rank);
  EXPECT_THAT(accelerator.prepare(chain({16, 16, 16, 32, 16})).float8_layers(), ElementsAre("0", "1"));
}

// A user's layer that derives from Linear and decides itself whether to compute in float8.
struct OwnLinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) {
    return asks && computes_in_float8(*this) ? nn::LinearImpl::forward(input) : at::linear(input, weight, bias);
  }
  bool asks = false;
};
TORCH_MODULE(OwnLinear);

// An own forward computes with the full weights, so the layer would silently not be in float8.
TEST(Float8Test, ALayerWithItsOwnForwardIsAnError) {
  const auto rank = seeded_rank();
  Accelerator accelerator({.mixed_precision = "fp8"}, *rank);
  OwnLinear inner(16, 16);
  auto model = accelerator.prepare(nn::Sequential(nn::Linear(16, 16), inner, nn::Linear(16, 16)));
  EXPECT_THAT(
      message_of<StateError>([&] {
        model(at::ones({2, 16}));
      }),
      AllOf(HasSubstr("none of the selected layers has computed in float8: 1;"), HasSubstr("computes_in_float8")));
  inner->asks = true;
  EXPECT_NO_THROW(model(at::ones({2, 16})));
}

// TransformerEncoderLayer calls the forward of its linear layers directly, past the prepared model.
TEST(Float8Test, LayersInsideLibTorchModulesComputeInFloat8) {
  const auto rank = seeded_rank();
  const auto chosen = [](const nn::LinearImpl&, const std::string& name) { return name == "linear1"; };
  Accelerator accelerator({.mixed_precision = "fp8", .ao_recipe_kwargs = AORecipeKwargs{.module_filter_func = chosen}},
                          *rank);
  nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0));
  auto model = accelerator.prepare(layer);
  const auto x = at::randn({4, 2, 16});
  EXPECT_NO_THROW(model(x)) << "an error would be that none of them has computed so";
}

// Checkpointing runs the forward again in backward. In another precision it would give other gradients.
TEST(Float8Test, RecomputedActivationsAreInFloat8Too) {
  const auto gradients = [](bool again) {
    const auto rank = seeded_rank();
    Accelerator accelerator(
        {.mixed_precision = "fp8",
         .fsdp_plugin = FullyShardedDataParallelPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                       .transformer_cls_names_to_wrap = {{"Linear"}},
                                                       .activation_checkpointing = again}},
        *rank);
    auto net = chain({16, 32, 32, 16});
    auto model = accelerator.prepare(net);
    EXPECT_THAT(model.float8_layers(), ElementsAre("1"));
    accelerator.backward(model(at::randn({6, 16}, make_generator(5))).square().mean());
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto once = gradients(false), again = gradients(true);
  ASSERT_EQ(once.size(), again.size());
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(once[i].equal(again[i])) << i;
}

// Accelerate's FSDP1 replaces parameters by views, which torchao refuses. Sharded weights are gathered in bfloat16, so
// they are rounded before they are float8.
TEST(Float8Test, TrainsUnderEveryStrategyOfFsdp1) {
  const auto losses = [](const std::optional<std::string>& strategy) {
    AcceleratorOptions options{.mixed_precision = "fp8"};
    if (strategy)
      options.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = *strategy, .use_orig_params = false};
    return run_ranks(2, [&] {
      Accelerator accelerator(options);
      set_seed(3);
      auto net = chain({16, 32, 32, 16});
      torch::optim::SGD sgd(net->parameters(), 0.5);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      std::vector<float> found;
      for (int step = 0; step < 3; ++step) {
        const auto x = at::randn({6, 16}, make_generator(2 * step + accelerator.process_index()));
        const auto loss = model(x).square().mean();
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        found.push_back(loss.template item<float>());
      }
      return found;
    });
  };
  const auto expected = losses(std::nullopt);
  for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}) {
    const auto found = losses(strategy);
    for (int rank : {0, 1}) EXPECT_THAT(found[rank], Pointwise(FloatNear(1e-3), expected[rank])) << strategy;
  }
}

// GPUs have a kernel for products with a scale for each row; CPUs compute the same in steps.
TEST(Float8Test, RowwiseScalesWorkWithoutAGpuKernel) {
  const auto x = at::randn({5, 32}, make_generator(1)), weight = at::randn({16, 32}, make_generator(2));
  auto emulated = Float8LinearConfig::from_recipe_name("rowwise");
  const auto computed = float8_linear(x, weight, {}, std::make_shared<const Float8LinearConfig>(emulated));
  emulated.emulate = true;
  const auto expected = float8_linear(x, weight, {}, std::make_shared<const Float8LinearConfig>(emulated));
  EXPECT_TRUE(computed.allclose(expected, 0.02, 0.02)) << "its product is in bfloat16";
}

// Autocast applies to the result of the emulated product. Rounding the operands first would change the scales.
TEST(Float8Test, AutocastRoundsAnEmulatedProductAndNotItsOperands) {
  const auto x = at::randn({5, 32}, make_generator(1)), weight = at::randn({16, 32}, make_generator(2));
  const auto emulated = std::make_shared<const Float8LinearConfig>(Float8LinearConfig{.emulate = true});
  const auto expected = float8_linear(x, weight, {}, emulated).to(at::kBFloat16);
  const Autocast scope({.dtype = at::kBFloat16});
  EXPECT_TRUE(float8_linear(x, weight, {}, emulated).equal(expected));
}

// A scale of NaN must not turn into 0, or an overflow would be hidden from the loss scaler.
TEST(Float8Test, NaNComesThrough) {
  auto x = at::ones({4, 16});
  x[2][3] = NAN;
  const auto out = float8_linear(x, at::ones({16, 16}), {}, std::make_shared<const Float8LinearConfig>());
  EXPECT_TRUE(out.isnan().any().item<bool>());
}

// The message for options that the Accelerator rejects.
std::string problems_of_options(AcceleratorOptions options) {
  const auto rank = make_single_rank();
  return message_of<ConfigError>([&] { Accelerator accelerator(std::move(options), *rank); });
}

// The options of a recipe depend on each other; each of these is wrong for another reason.
TEST(Float8OptionsTest, AllProblemsAreInOneMessage) {
  Float8LinearConfig bad{.cast_config_input = {.scaling_type = ScalingType::kDisabled,
                                               .scaling_granularity = ScalingGranularity::kAxiswise},
                         .cast_config_weight_for_grad_input = CastConfig{.target_dtype = Float8Type::kE5m2},
                         .enable_fsdp_float8_all_gather = true};
  EXPECT_THAT(
      problems_of_options({.mixed_precision = "fp8", .ao_recipe_kwargs = AORecipeKwargs{.config = bad}}),
      AllOf(HasSubstr("output: expected that both input and weight are scaled"),
            HasSubstr("grad_weight: expected that both input and grad_output are scaled"),
            HasSubstr("input: axiswise scaling requires dynamic scaling, but scaling is disabled; set scaling_type"),
            HasSubstr("weight: expected the same target_dtype"),
            HasSubstr("enable_fsdp_float8_all_gather: unsupported")));
  EXPECT_THAT(problems_of_options({.mixed_precision = "bf16", .ao_recipe_kwargs = AORecipeKwargs{}}),
              HasSubstr("ao_recipe_kwargs: requires mixed_precision 'fp8', got 'bf16'"));
  EXPECT_THAT(problems_of_options({.mixed_precision = "fp4"}),
              HasSubstr("expected 'no', 'fp16', 'bf16', 'fp8', got 'fp4'"));
  EXPECT_THAT(message_of<ConfigError>([] { Float8LinearConfig::from_recipe_name("mxfp8"); }),
              HasSubstr("expected tensorwise, rowwise or rowwise_with_gw_hp, got 'mxfp8'"));
}

// An option that the program gives must not be replaced by a variable.
TEST(Float8OptionsTest, TheEnvironmentSuppliesAbsentOptions) {
  CleanEnvironment environment({"ACCELERATE_FP8_BACKEND", "ACCELERATE_FP8_PAD_INNER_DIM"});
  environment.set({{"ACCELERATE_FP8_PAD_INNER_DIM", "false"}});
  std::vector<std::string> problems;
  EXPECT_FALSE(resolved(AORecipeKwargs{}, problems).config->pad_inner_dim);
  EXPECT_TRUE(resolved(AORecipeKwargs{.pad_inner_dim = true}, problems).config->pad_inner_dim);
  EXPECT_THAT(problems, IsEmpty());
  environment.set({{"ACCELERATE_FP8_BACKEND", "TE"}, {"ACCELERATE_FP8_PAD_INNER_DIM", "perhaps"}});
  EXPECT_THAT(
      problems_of_options({.mixed_precision = "fp8"}),
      AllOf(HasSubstr("ACCELERATE_FP8_BACKEND: 'TE' is a Python package"), HasSubstr("ACCELERATE_FP8_PAD_INNER_DIM")));
}

}  // namespace
}  // namespace accel::testing
