// Models larger than memory: modules are loaded when they are called and freed afterwards, and the next one is read
// ahead. The bits must be those of the complete model, and memory must stay within two units.
#include "reference/offload/dispatch.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/offload/empty_weights.hpp"
#include "tests/reference/offload/dispatched_models.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::dispatched_models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

// Eight layers with memory for four: two stay in memory, and two are loaded at a time, one that runs and one that
// is prefetched.
TEST_F(DispatchTest, AModelLargerThanMemoryComputesTheSameBits) {
  auto whole = layers(8);
  const c10::InferenceMode inference;
  const auto expected = whole->forward(input_);
  const auto checkpoint = saved(whole, 3 * kLayerBytes);
  auto net = init_empty_weights([] { return layers(8); });
  auto model = load_checkpoint_and_dispatch(net, checkpoint,
                                            {.device_map = "auto", .max_memory = MaxMemory{{"cpu", 4 * kLayerBytes}}});
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(model(input_).equal(expected));
  EXPECT_TRUE(net->forward(input_).equal(expected)) << "the module itself is called so too";
  EXPECT_EQ(resident_bytes(*net), 2 * kLayerBytes);
  EXPECT_EQ(model.statistics().bytes_peak, 2 * kLayerBytes) << "one that runs, one that is read";
  EXPECT_EQ(model.statistics().bytes_now, 0);
  EXPECT_EQ(model.statistics().num_loads, 4 * 6);
  EXPECT_EQ(model.statistics().num_prefetched, 4 * 5) << "all but the first of each pass";
}

// For every automatic choice of a device map.
TEST_F(DispatchTest, CalledModulesAreLoadedOneByOne) {
  const torch::NoGradGuard no_grad;
  Net whole(4);
  const auto expected = whole->forward(tokens_);
  const auto checkpoint = saved(whole);
  for (const auto* choice : {"auto", "sequential", "balanced_low_0"}) {
    auto model = load_checkpoint_and_dispatch(
        init_empty_weights([] { return Net(4); }), checkpoint,
        {.device_map = std::string(choice), .max_memory = MaxMemory{{"cpu", 0}}, .strict = true});
    EXPECT_TRUE(model(tokens_).equal(expected)) << choice;
    EXPECT_EQ(model.hf_device_map().size(), 1u);
    EXPECT_EQ(model.statistics().bytes_now, 0);
    EXPECT_EQ(model.statistics().bytes_peak, 4 * 20 * kWidth + 4 * (4 * kWidth + 3) * kWidth)
        << "the model's own, and one block";
  }
}

// C++ has no forward hooks, so a module must be called by accel::call to be loaded. Otherwise its weights are
// missing.
TEST_F(DispatchTest, AModuleThatIsNotCalledThroughCallIsNamed) {
  const torch::NoGradGuard no_grad;
  const auto checkpoint = saved(Net(2));
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Net(2, /*calls=*/false); }), checkpoint,
                                            {.device_map = DeviceMap{{"", "disk"}}});
  EXPECT_THAT(message_of<StateError>([&] { model(tokens_); }),
              AllOf(HasSubstr("accel::call"), HasSubstr("'blocks.0', 'blocks.1'")));
}

// Weights are freed after each layer, so a backward pass is impossible. The message names the remedy.
TEST_F(DispatchTest, TrainingAnOffloadedModelIsRejected) {
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), saved(layers(2)),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  EXPECT_THAT(message_of<StateError>([&] { model(input_); }), HasSubstr("NoGradGuard"));
  for (auto& parameter : model->parameters()) parameter.requires_grad_(false);
  EXPECT_NO_THROW(model(input_));
}

// A loop that catches errors must not run out of memory.
TEST_F(DispatchTest, AForwardThatThrowsFreesItsWeights) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(3);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(3); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  for (int i = 0; i < 3; ++i) EXPECT_THROW(model(torch::rand({3, kWidth + 1})), c10::Error);
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
  EXPECT_TRUE(model(input_).equal(whole->forward(input_)));
  EXPECT_EQ(model.statistics().bytes_now, 0);
}

// A model that calls its blocks in an order given by the caller.
struct ShuffledImpl : torch::nn::Module {
  ShuffledImpl() {
    register_module("blocks", blocks);
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(kWidth));
  }
  torch::Tensor forward(torch::Tensor values, const std::vector<int>& order) {
    for (const auto block : order) values = call(blocks->at<BlockImpl>(static_cast<std::size_t>(block)), values);
    return values;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Shuffled);

// A unit that was read ahead and is not called is freed before another one is read.
TEST_F(DispatchTest, AnyOrderOfCallsNeedsAtMostTwoUnits) {
  const torch::NoGradGuard no_grad;
  Shuffled whole;
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Shuffled(); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  for (const std::vector<int>& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 0, 2}, {1, 3, 1}, {}, {2}}) {
    EXPECT_TRUE(model(input_, order).equal(whole->forward(input_, order)));
    for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
  }
  EXPECT_EQ(model.statistics().bytes_peak, 2 * 4 * (4 * kWidth + 3) * kWidth);
}

// The order of calls is learned, including that no unit follows the last one. Afterwards only the first unit of a
// pass is not read ahead.
TEST_F(DispatchTest, RepeatedPassesAreReadAheadAndFreeTheirUnits) {
  const torch::NoGradGuard no_grad;
  Shuffled whole;
  const auto checkpoint = saved(whole);
  for (const std::vector<int>& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3}, {1}}) {
    auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Shuffled(); }), checkpoint,
                                              {.device_map = DeviceMap{{"", "disk"}}});
    model(input_, order);
    model(input_, order);
    const auto before = model.statistics();
    EXPECT_EQ(before.bytes_now, 0) << ::testing::PrintToString(order);
    EXPECT_TRUE(model(input_, order).equal(whole->forward(input_, order)));
    const auto count = static_cast<int64_t>(order.size());
    EXPECT_EQ(model.statistics().num_loads - before.num_loads, count);
    EXPECT_EQ(model.statistics().num_prefetched - before.num_prefetched, count - 1) << ::testing::PrintToString(order);
  }
}

// The prefetcher expects the order of the modules.
TEST_F(DispatchTest, AWrongGuessIsNotCountedAsPrefetched) {
  const torch::NoGradGuard no_grad;
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Shuffled(); }), saved(Shuffled()),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  model(input_, std::vector{3, 1, 0, 2});  // not in the model's order
  EXPECT_EQ(model.statistics().num_prefetched, 0);
}

// An output layer that shares the weight of another layer.
struct ReadoutImpl : torch::nn::Module {
  explicit ReadoutImpl(const torch::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(Readout);

// A model whose part also needs a weight that the model itself uses before and after the part's call.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : embedding(register_module("embedding", torch::nn::Embedding(20, kWidth))) {
    register_module("parts", parts);
    parts->push_back(Readout(embedding->weight));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto scores = call(parts->at<ReadoutImpl>(0), embedding(tokens));
    return torch::matmul(scores, embedding->weight);
  }
  torch::nn::Embedding embedding;
  torch::nn::ModuleList parts;
};
TORCH_MODULE(Tied);

// Freeing it after the first would leave the second without a weight.
TEST_F(DispatchTest, AWeightOfTwoUnitsStaysUntilBothAreDone) {
  const torch::NoGradGuard no_grad;
  Tied whole;
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Tied(); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(model(tokens_).equal(whole->forward(tokens_)));
  EXPECT_EQ(model.statistics().bytes_peak, 4 * 20 * kWidth) << "in memory once";
  EXPECT_EQ(model.statistics().bytes_now, 0);
  EXPECT_TRUE(model->embedding->weight.is_meta());
}

// Calls its parts directly, or through `accel::call`.
struct BranchedImpl : torch::nn::Module {
  explicit BranchedImpl(bool calls)
      : first(register_module("first", Block(kWidth))),
        second(register_module("second", Block(kWidth))),
        calls(calls) {}
  torch::Tensor forward(const torch::Tensor& x) { return calls ? call(*second, call(*first, x)) : second(first(x)); }
  Block first, second;
  bool calls;
};
TORCH_MODULE(Branched);

// Needed for modules that use the weights of their children directly.
TEST_F(DispatchTest, PreloadedClassesAreLoadedAsOneUnit) {
  const torch::NoGradGuard no_grad;
  const auto block_bytes = 4 * (4 * kWidth + 3) * kWidth;
  Branched whole(/*calls=*/false);
  const auto checkpoint = saved(whole);
  const auto dispatched = [&](bool calls, const std::vector<std::string>& preloaded,
                              const std::vector<std::string>& called) {
    return load_checkpoint_and_dispatch(
        init_empty_weights([&] { return Branched(calls); }), checkpoint,
        {.device_map = DeviceMap{{"", "disk"}}, .preload_module_classes = preloaded, .called_modules = called});
  };
  auto apart = dispatched(true, {}, {"first", "second"});
  EXPECT_TRUE(apart(input_).equal(whole->forward(input_)));
  EXPECT_EQ(apart.statistics().num_loads, 2);
  auto preloaded = dispatched(false, {"Branched"}, {"first", "second"});
  EXPECT_TRUE(preloaded(input_).equal(whole->forward(input_)));
  EXPECT_EQ(preloaded.statistics().num_loads, 1);
  EXPECT_EQ(preloaded.statistics().bytes_peak, 2 * block_bytes);

  Net net(2);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Net(2, /*calls=*/false); }), saved(net),
                                            {.device_map = DeviceMap{{"", "disk"}}, .preload_module_classes = {"Net"}});
  EXPECT_TRUE(model(tokens_).equal(net->forward(tokens_))) << "elements of a list are brought with it";
  EXPECT_THAT(message_of<ArgumentError>([&] { dispatched(true, {"Missing"}, {"third"}); }),
              AllOf(HasSubstr("the model has no module of class 'Missing'"), HasSubstr("no module named 'third'")));
}

// Its weights are loaded for both calls, and released after each.
TEST_F(DispatchTest, AModuleAtTwoPlacesIsOneUnit) {
  const torch::NoGradGuard no_grad;
  const auto make = [] {
    torch::nn::Linear linear(kWidth, kWidth);
    return torch::nn::Sequential(linear, torch::nn::ReLU(), linear);
  };
  auto whole = make();
  auto model = load_checkpoint_and_dispatch(init_empty_weights(make), saved(whole),
                                            {.device_map = DeviceMap{{"0", "disk"}, {"2", "disk"}}});
  EXPECT_TRUE(model(input_).equal(whole->forward(input_)));
  EXPECT_EQ(model.statistics().bytes_peak, kLayerBytes);
}

// --- properties ---
// --- laws ------------------------------------------------------------------------------------------------------------

// For any map of a model over memory and disk, and any limit: the bits of the complete model, and no more memory
// than allowed.
TEST(DispatchLaws, AnyPlanComputesTheSameBitsWithinItsMemory) {
  testing::expect_property(30, [] {
    const torch::NoGradGuard no_grad;
    const TemporaryFolder folder;
    const int num_blocks = testing::pick(1, 6);
    Net whole(num_blocks);
    const auto tokens = torch::randint(0, 20, {4});
    const auto expected = whole->forward(tokens);
    PosixFiles files;
    NamedTensors state;
    for (const auto& [name, tensor] : deduplicate_shared(offload::tensors_of(*whole)).tensors)
      state.emplace_back(name, tensor.detach());
    write_weights(files, folder.path("m"), state,
                  {.max_shard_bytes = testing::pick(500, 50'000), .safe_serialization = testing::pick(0, 2) == 0});
    const auto limit = testing::pick(0, 60'000);
    const auto net = init_empty_weights([&] { return Net(num_blocks); });
    auto model = load_checkpoint_and_dispatch(
        net, folder.path("m"), {.device_map = "auto", .max_memory = MaxMemory{{"cpu", limit}}, .strict = true});
    for (int pass = 0; pass < 2; ++pass) RC_ASSERT(model(tokens).equal(expected));
    const auto largest =
        4 * (20 * kWidth) +
        4 * (4 * kWidth * kWidth + 3 * kWidth);  // the model's own and a block, without which it does not run
    RC_ASSERT(resident_bytes(*net) + model.statistics().bytes_peak <= std::max<std::int64_t>(limit, largest));
  });
}

// A model whose own weights are needed after its parts, so that they are in memory next to each of them.
struct TailedImpl : torch::nn::Module {
  TailedImpl(int num_blocks, int64_t tail_width) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(kWidth));
    tail = register_module("tail", torch::nn::Linear(kWidth, tail_width));
  }
  torch::Tensor forward(torch::Tensor values) {
    for (const auto& block : *blocks) values = call(block->as<Block>(), values);
    return tail(values);
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear tail{nullptr};
};
TORCH_MODULE(Tailed);

// The limit must include the unit that is prefetched while another computes.
TEST(DispatchLaws, WeightsAroundTheActiveUnitCountAsMemory) {
  testing::expect_property(30, [] {
    const torch::NoGradGuard no_grad;
    const TemporaryFolder folder;
    const int num_blocks = testing::pick(1, 6);
    const auto tail_width = testing::pick<int64_t>(1, 100);
    Tailed whole(num_blocks, tail_width);
    const auto input = torch::rand({4, kWidth});
    PosixFiles files;
    NamedTensors state;
    for (const auto& [name, tensor] : offload::tensors_of(*whole)) state.emplace_back(name, tensor.detach());
    write_weights(files, folder.path("m"), state, {});
    const auto limit = testing::pick(0, 60'000);
    const auto net = init_empty_weights([&] { return Tailed(num_blocks, tail_width); });
    auto model = load_checkpoint_and_dispatch(
        net, folder.path("m"), {.device_map = "auto", .max_memory = MaxMemory{{"cpu", limit}}, .strict = true});
    for (int pass = 0; pass < 2; ++pass) RC_ASSERT(model(input).equal(whole->forward(input)));
    const auto least = 4 * (kWidth + 1) * tail_width + 4 * (4 * kWidth + 3) * kWidth;
    RC_ASSERT(resident_bytes(*net) + model.statistics().bytes_peak <= std::max<std::int64_t>(limit, least));
  });
}

}  // namespace
}  // namespace accel::dispatched_models
