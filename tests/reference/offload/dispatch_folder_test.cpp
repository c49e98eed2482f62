// Dispatched models from folders and checkpoints: offloading to a folder, other dtypes, problems, and units that
// are loaded on demand.
#include <gmock/gmock.h>
#include <torch/cuda.h>

#include <atomic>
#include <fstream>
#include <map>

#include "reference/core/errors.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/layerwise_casting.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "tests/reference/offload/dispatched_models.hpp"
#include "tests/support/message_of.hpp"

namespace accel::dispatched_models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

// The files are float32 and the model is bfloat16: reading the bytes unchanged would give noise.
TEST_F(DispatchTest, AFolderOfAnotherDtypeIsConvertedToTheModels) {
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

// Files of an earlier model in the same folder must not be used.
TEST_F(DispatchTest, AModelInMemoryIsOffloadedToAFolder) {
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

// A later process need not read the checkpoint again.
TEST_F(DispatchTest, AnExistingFolderServesAnEmptyModel) {
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

// The model is empty, and the map has neither a checkpoint nor a folder to take its weights from.
TEST_F(DispatchTest, AllProblemsAreReportedTogether) {
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

// A model that fits needs no hooks, so it must also train.
TEST_F(DispatchTest, AMapOfMainMemoryOnlyLeavesAPlainModule) {
  auto whole = layers(2);
  auto model = load_checkpoint_and_dispatch(init_empty_weights([] { return layers(2); }), saved(whole),
                                            {.device_map = "auto", .max_memory = MaxMemory{{"cpu", "1GB"}}});
  auto out = model(input_);
  EXPECT_TRUE(out.equal(whole->forward(input_)));
  out.sum().backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

// Converted while loading, so that the memory for the original dtype is never needed.
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

// A half-loaded model would compute garbage; the check comes before the first tensor.
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

// Weights stay in the checkpoint's files instead of being copied to the offload folder.
TEST_F(DispatchTest, TheOffloadIndexRefersToTheCheckpointsFiles) {
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

// Weights on disk appear as empty tensors between calls.
TEST_F(DispatchTest, WeightsAreLoadedWhileTheyAreAccessed) {
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

// Saves memory for the weights without computing in low precision.
TEST(LayerwiseCastingTest, WeightsAreNarrowBetweenCallsAndWideDuringThem) {
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

// Reading is what takes time, so the number of reads is counted.
TEST(StreamedModelTest, EachTensorIsReadOncePerCallOfItsUnit) {
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

// A shared tensor would otherwise be read twice.
TEST(UnitPlanTest, UnitsListATensorOnceAtItsFirstPlace) {
  const auto units = offload::plan_units(describe(Net(1).ptr()).description);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(units[0].tensors, ::testing::UnorderedElementsAre("head", "shift"));
  EXPECT_THAT(units[1].tensors, ElementsAre("blocks.0.inner.weight", "blocks.0.inner.bias", "blocks.0.outer.weight",
                                            "blocks.0.outer.bias"));
}

}  // namespace
}  // namespace accel::dispatched_models
