#include "reference/offload/dispatch.hpp"

#include <gmock/gmock.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <atomic>
#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/core/safetensors.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/layerwise_casting.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/offload/module_tensors.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kWidth = 16;
constexpr int64_t kLayerBytes = 4 * (kWidth * kWidth + kWidth);

torch::nn::Sequential layers(int count) {
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : inner(register_module("inner", torch::nn::Linear(width, 2 * width))),
        outer(register_module("outer", torch::nn::Linear(2 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + outer(torch::relu(inner(x))); }
  torch::nn::Linear inner, outer;
};
TORCH_MODULE(Block);

// Its embedding is the weight of its head too.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int num_blocks, bool calls = true)
      : embedding(register_module("embedding", torch::nn::Embedding(20, kWidth))),
        head(register_parameter("head", embedding->weight)),
        shift(register_buffer("shift", torch::full({kWidth}, 0.5f))),
        calls(calls) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(kWidth));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto values = embedding(tokens) + shift;
    for (const auto& block : *blocks)
      values = calls ? call(block->as<Block>(), values) : block->as<Block>()->forward(values);
    return torch::linear(values, head);
  }
  torch::nn::Embedding embedding;
  torch::Tensor head, shift;
  torch::nn::ModuleList blocks;
  bool calls;
};
TORCH_MODULE(Net);

// Of parameters that have memory, each once.
int64_t resident_bytes(const torch::nn::Module& net) {
  std::set<const c10::TensorImpl*> seen;
  int64_t bytes = 0;
  for (const auto& parameter : net.parameters()) {
    if (!parameter.is_meta() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

class DispatchTest : public ::testing::Test {
 protected:
  template <typename Model>
  std::string saved(const Model& net, int64_t max_shard_bytes = 10'000'000) {
    PosixFiles files;
    NamedTensors state;
    for (const auto& [name, tensor] : without_shared(offload::tensors_of(*net)).tensors)
      state.emplace_back(name, tensor.detach());
    write_weights(files, folder_.path("checkpoint"), state, {.max_shard_bytes = max_shard_bytes});
    return folder_.path("checkpoint");
  }

  TemporaryFolder folder_;
  torch::Tensor input_ = torch::rand({3, kWidth}), tokens_ = torch::tensor({3, 1, 19});
};

TEST_F(DispatchTest, AModelLargerThanItsMemoryComputesTheSameBits) {
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

TEST_F(DispatchTest, PartsThatAreCalledAreBroughtOneByOne) {
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

TEST_F(DispatchTest, APartThatIsNotCalledSoIsNamed) {
  const torch::NoGradGuard no_grad;
  const auto checkpoint = saved(Net(2));
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Net(2, /*calls=*/false); }), checkpoint,
                                            {.device_map = DeviceMap{{"", "disk"}}});
  EXPECT_THAT(message_of<StateError>([&] { model(tokens_); }),
              AllOf(HasSubstr("accel::call"), HasSubstr("'blocks.0', 'blocks.1'")));
}

TEST_F(DispatchTest, WhatHasNoGradientSaysSo) {
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), saved(layers(2)),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  EXPECT_THAT(message_of<StateError>([&] { model(input_); }), HasSubstr("NoGradGuard"));
  for (auto& parameter : model->parameters()) parameter.requires_grad_(false);
  EXPECT_NO_THROW(model(input_));
}

TEST_F(DispatchTest, AForwardThatThrowsLeavesNothingInMemory) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(3);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(3); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  for (int i = 0; i < 3; ++i) EXPECT_THROW(model(torch::rand({3, kWidth + 1})), c10::Error);
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
  EXPECT_TRUE(model(input_).equal(whole->forward(input_)));
  EXPECT_EQ(model.statistics().bytes_now, 0);
}

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

// What was read for a unit that does not come is let go before another is read.
TEST_F(DispatchTest, AnyOrderOfCallsTakesTwoUnitsAtMost) {
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

// The order of calls is learned, and that nothing follows the last: only the first unit of a pass is not read ahead
// then.
TEST_F(DispatchTest, PassesInTheSameOrderAreReadAheadAndLeaveNothingInMemory) {
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

TEST_F(DispatchTest, WhatWasReadForAnotherUnitIsNotCountedAsReadAhead) {
  const torch::NoGradGuard no_grad;
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Shuffled(); }), saved(Shuffled()),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  model(input_, std::vector{3, 1, 0, 2});  // expected: the model's order
  EXPECT_EQ(model.statistics().num_prefetched, 0);
}

struct ReadoutImpl : torch::nn::Module {
  explicit ReadoutImpl(const torch::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(Readout);

// Its part has the weight that it needs itself, before and behind the part's call.
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

TEST_F(DispatchTest, AWeightOfTwoUnitsStaysUntilTheLastOfThemIsDone) {
  const torch::NoGradGuard no_grad;
  Tied whole;
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return Tied(); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(model(tokens_).equal(whole->forward(tokens_)));
  EXPECT_EQ(model.statistics().bytes_peak, 4 * 20 * kWidth) << "in memory once";
  EXPECT_EQ(model.statistics().bytes_now, 0);
  EXPECT_TRUE(model->embedding->weight.is_meta());
}

// Calls its parts as they are, or by `accel::call`.
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

TEST_F(DispatchTest, PreloadedClassesAreBroughtWholeAndCalledModulesByThemselves) {
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
              AllOf(HasSubstr("no module is a 'Missing'"), HasSubstr("no module 'third'")));
}

TEST_F(DispatchTest, AFolderOfAnotherDtypeServesTheModelsOwn) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(2);
  { auto model = disk_offload(whole, folder_.path("offload")); }
  auto narrow = init_empty_weights([] { return layers(2); });
  narrow->to(torch::kBFloat16);
  auto model = disk_offload(narrow, folder_.path("offload"));
  auto expected = layers(2);
  const auto index = read_offload_index(folder_.path("offload"));
  for (const auto& item : expected->named_parameters()) item.value().copy_(index.at(item.key()).load());
  expected->to(torch::kBFloat16);
  EXPECT_TRUE(model(input_.to(torch::kBFloat16)).equal(expected->forward(input_.to(torch::kBFloat16))));
}

TEST_F(DispatchTest, AModuleAtTwoPlacesIsOne) {
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

TEST_F(DispatchTest, AModelInMemoryGoesToAFolder) {
  const torch::NoGradGuard no_grad;
  Net net(2);
  net->to(torch::kBFloat16);
  const auto expected = net->forward(tokens_);
  folder_.write("offload/old.dat", "");
  auto model = disk_offload(net, folder_.path("offload"), {.offload_buffers = true});
  EXPECT_TRUE(net->embedding->weight.is_meta());
  EXPECT_TRUE(model(tokens_).equal(expected));
  const auto index = read_offload_index(folder_.path("offload"));
  EXPECT_EQ(index.at("head").dtype, at::kBFloat16);
  EXPECT_FALSE(index.contains("embedding.weight")) << "a shared parameter is written once";
  EXPECT_TRUE(index.contains("shift"));
}

TEST_F(DispatchTest, AFolderThatIsThereServesAnEmptyModel) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(2);
  const auto expected = whole->forward(input_);
  { auto model = disk_offload(whole, folder_.path("offload")); }
  auto model = disk_offload(init_empty_weights([] { return layers(2); }), folder_.path("offload"));
  EXPECT_TRUE(model(input_).equal(expected));
  EXPECT_THAT(message_of<ArgumentError>(
                  [&] { disk_offload(init_empty_weights([] { return layers(3); }), folder_.path("offload")); }),
              HasSubstr("'4.weight'"));
}

TEST_F(DispatchTest, AllProblemsAreToldTogether) {
  const auto message = message_of<ArgumentError>([&] {
    dispatch_model(init_empty_weights([] { return layers(2); }), {{"0", "cpu"}, {"2", "disk"}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("'0.weight'"), HasSubstr("'0.bias'"), HasSubstr("'2.weight'")));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                dispatch_model(layers(2), {{"0", "cpu"}, {"2", "disk"}});
              }),
              HasSubstr("offload_dir"));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                dispatch_model(layers(1), {{"0.weight", "cpu"}});
              }),
              HasSubstr("'0.bias'"));
  EXPECT_THAT(message_of<ArgumentError>(
                  [&] { load_checkpoint_and_dispatch(layers(1), saved(layers(1)), {.device_map = "best"}); }),
              HasSubstr("balanced_low_0"));
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(message_of<ConfigError>([&] { dispatch_model(layers(1), {{"", 0}}); }), HasSubstr("0 GPUs"));
    EXPECT_THAT(message_of<ConfigError>([&] { cpu_offload(layers(1), "cuda:1"); }), HasSubstr("device 1"));
  }
}

TEST_F(DispatchTest, AMapOfMainMemoryAloneLeavesAPlainModule) {
  auto whole = layers(2);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), saved(whole),
                                            {.device_map = "auto", .max_memory = MaxMemory{{"cpu", "1GB"}}});
  auto out = model(input_);
  EXPECT_TRUE(out.equal(whole->forward(input_)));
  out.sum().backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

TEST_F(DispatchTest, WeightsAreLoadedInAnotherDtype) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(2);
  const auto checkpoint = saved(whole);
  whole->to(torch::kBFloat16);
  auto model =
      load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), checkpoint,
                                   {.device_map = DeviceMap{{"0", "cpu"}, {"2", "disk"}}, .dtype = at::kBFloat16});
  EXPECT_TRUE(model(input_.to(torch::kBFloat16)).equal(whole->forward(input_.to(torch::kBFloat16))));
}

TEST_F(DispatchTest, ACheckpointThatDoesNotFitChangesNothing) {
  auto net = layers(2);
  const auto before = net->parameters()[0].clone();
  EXPECT_THAT(
      message_of<CheckpointError>([&] {
        load_checkpoint_in_model(*net, saved(layers(3)), {.strict = true, .device_map = DeviceMap{{"", "disk"}}});
      }),
      HasSubstr("'4.weight'"));
  EXPECT_TRUE(net->parameters()[0].equal(before));
}

TEST_F(DispatchTest, TheIndexOfALoadedCheckpointNamesItsFiles) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(2);
  auto net = init_empty_weights([] { return layers(2); });
  load_checkpoint_in_model(*net, saved(whole),
                           {.device_map = DeviceMap{{"", "disk"}}, .offload_folder = folder_.path("offload")});
  std::ifstream file(folder_.path("offload/index.json"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, AllOf(HasSubstr("\"safetensors_file\": \""), HasSubstr("\"weight_name\": \"0.weight\""),
                          HasSubstr("\"dtype\": \"float32\"")));
  auto model = dispatch_model(net, {{"", "disk"}}, {.offload_dir = folder_.path("offload")});
  EXPECT_TRUE(model(input_).equal(whole->forward(input_)));
}

TEST_F(DispatchTest, WeightsAreAlignedWhileTheyAreLookedAt) {
  const torch::NoGradGuard no_grad;
  auto whole = layers(2);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), saved(whole),
                                            {.device_map = DeviceMap{{"", "disk"}}});
  {
    const auto aligned = align_module_device(*model->children()[0]);
    EXPECT_TRUE(model->parameters()[0].equal(whole->parameters()[0]));
    EXPECT_TRUE(model->parameters()[2].is_meta());
  }
  EXPECT_TRUE(model->parameters()[0].is_meta());
  {
    const auto aligned = align_module_device(*whole->children()[0], at::kMeta);
    EXPECT_TRUE(whole->parameters()[0].is_meta());
  }
}

TEST(LayerwiseCastingTest, WeightsAreSmallBetweenCallsAndLargeInThem) {
  const torch::NoGradGuard no_grad;
  auto net = layers(3), expected = layers(3);
  const auto input = torch::rand({3, kWidth});
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const bool is_cast = i < 4;
    expected->parameters()[i].set_data(is_cast ? net->parameters()[i].to(at::kFloat8_e4m3fn).to(at::kFloat)
                                               : net->parameters()[i].clone());
  }
  auto model = attach_layerwise_casting_hooks(
      net, {.storage_dtype = at::kFloat8_e4m3fn, .compute_dtype = at::kFloat, .skip_modules_pattern = {"^4$"}});
  EXPECT_EQ(net->parameters()[0].scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(net->parameters()[4].scalar_type(), at::kFloat);
  EXPECT_TRUE(model(input).equal(expected->forward(input)));
  EXPECT_EQ(net->parameters()[0].scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_THAT(
      message_of<ArgumentError>([&] { attach_layerwise_casting_hooks(layers(1), {.skip_modules_pattern = {"("}}); }),
      HasSubstr("'('"));
}

TEST(StreamedModelTest, EachTensorIsReadOnceACallOfItsUnit) {
  const torch::NoGradGuard no_grad;
  auto net = layers(3);
  std::vector<offload::Slot> slots;
  std::vector<offload::StreamedUnit> units;
  std::map<std::string, std::shared_ptr<std::atomic<int>>> reads;
  for (const auto& item : net->named_parameters()) {
    const auto count = reads[item.key()] = std::make_shared<std::atomic<int>>(0);
    slots.push_back({.name = item.key(),
                     .tensor = item.value(),
                     .away = offload::meta_like(item.value()),
                     .load = [count, values = item.value().detach().clone()] {
                       ++*count;
                       return values;
                     }});
  }
  for (std::size_t unit = 0; unit < 3; ++unit)
    units.push_back(
        {.name = std::to_string(2 * unit), .module = net->children()[2 * unit], .slots = {2 * unit, 2 * unit + 1}});
  const offload::StreamedModel streamed(net.ptr(), std::move(slots), std::move(units), /*prefetch=*/true);
  for (int pass = 1; pass <= 2; ++pass) {
    net->forward(torch::rand({2, kWidth}));
    for (const auto& [name, count] : reads) EXPECT_EQ(*count, pass) << name;
  }
  EXPECT_EQ(streamed.statistics().bytes_now, 0);
}

TEST(UnitPlanTest, UnitsNameATensorOnceAtItsFirstPlace) {
  const auto units = offload::plan_units(describe(Net(1).ptr()).description);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(units[0].tensors, ::testing::UnorderedElementsAre("head", "shift"));
  EXPECT_THAT(units[1].tensors, ElementsAre("blocks.0.inner.weight", "blocks.0.inner.bias", "blocks.0.outer.weight",
                                            "blocks.0.outer.bias"));
}

// --- laws ------------------------------------------------------------------------------------------------------------

// Any map of a model over memory and disk, any limit: the bits of the whole model, and no more memory than allowed.
TEST(DispatchLaws, AnyPlanComputesTheWholeModelsBitsWithinItsMemory) {
  testing::expect_property(30, [] {
    const torch::NoGradGuard no_grad;
    const TemporaryFolder folder;
    const int num_blocks = testing::pick(1, 6);
    Net whole(num_blocks);
    const auto tokens = torch::randint(0, 20, {4});
    const auto expected = whole->forward(tokens);
    PosixFiles files;
    NamedTensors state;
    for (const auto& [name, tensor] : without_shared(offload::tensors_of(*whole)).tensors)
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

// A model whose own weights are needed behind its parts, and so are in memory beside each of them.
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

TEST(DispatchLaws, WhatIsAroundTheUnitThatRunsIsWithinTheMemoryToo) {
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
}  // namespace accel
