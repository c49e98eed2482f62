// Tests of the memory that sharded training takes, and of shards kept in files. Memory is measured by the
// allocations of the ranks, not estimated.
#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <filesystem>
#include <functional>
#include <gmock/gmock.h>

#include "reference/sharded/file_memory.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

// Two linear layers with a hidden layer that may be wide.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int width, int hidden)
      : up(register_module("up", torch::nn::Linear(width, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Layer);

// A stack of layers of equal width, each of which is a unit.
torch::nn::Sequential make_layers(int num_layers, int width, int hidden) {
  torch::manual_seed(7);
  torch::nn::Sequential layers;
  for (int i = 0; i < num_layers; ++i) layers->push_back(Layer(width, hidden));
  return layers;
}

// Parameters, gradients and moments take 16 bytes for each element, four times what one rank may hold. On eight
// ranks the model must train nevertheless.
TEST(ShardedAcceleratorTest, AModelFourTimesLargerThanARanksAllowanceTrains) {
  constexpr int kRanks = 8, kLayers = 16, kWidth = 96, kRows = 8;
  std::int64_t elements = 0;
  for (const auto& parameter : make_layers(kLayers, kWidth, kWidth)->parameters()) elements += parameter.numel();
  const auto allowance = 16 * elements / 4;
  const auto held = run_ranks(kRanks, [&] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.wrap_modules = {"[0-9]+"}}});
    auto net = make_layers(kLayers, kWidth, kWidth);
    optim::Adam adam(net->parameters(), {.lr = 0.001});
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto generator = make_generator(accelerator.process_index());
    const auto inputs = torch::randn({kRows, kWidth}, generator);
    float first = 0, last = 0;
    sharded::MemoryAccount account;
    for (int step = 0; step < 6; ++step) {
      at::Tensor loss;
      {
        const auto meter = accelerator.measure_activations(model);
        loss = (model(inputs) - inputs).square().mean();
      }
      accelerator.backward(loss);
      optimizer.step();
      account = accelerator.memory_account(model);
      optimizer.zero_grad();
      (step == 0 ? first : last) = loss.item<float>();
    }
    EXPECT_LT(last, first);
    return account;
  });
  for (const auto& account : held) {
    std::int64_t most = 0;
    for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind)
      most += account.most(static_cast<sharded::MemoryKind>(kind));
    EXPECT_LT(most, allowance);
    // 16 bytes for each element, divided by the number of ranks, and a step count for each parameter.
    const auto state = account.most(sharded::MemoryKind::kParameters) + account.now(sharded::MemoryKind::kGradients) +
                       account.most(sharded::MemoryKind::kOptimizer);
    const double share = 16.0 * static_cast<double>(elements) / kRanks;
    EXPECT_NEAR(static_cast<double>(state), share, 0.05 * share);
    EXPECT_GE(account.most(sharded::MemoryKind::kActivations), 2 * kLayers * kRows * kWidth * 4)
        << "inputs of two linear parts in each layer";
    EXPECT_LT(account.most(sharded::MemoryKind::kActivations), 4 * kLayers * kRows * kWidth * 4);
  }
}

// The hidden layer is much wider than its input, and recomputing keeps only the input.
TEST(ShardedAcceleratorTest, ActivationMemoryIsMeasuredAndRecomputationLowersIt) {
  constexpr int kLayers = 8, kWidth = 16, kHidden = 128, kRows = 512;
  const auto activations_of = [&](bool recomputes) {
    return run_ranks(
               2,
               [&] {
                 Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{
                                              .wrap_modules = {"[0-9]+"}, .activation_checkpointing = recomputes}});
                 auto model = accelerator.prepare(make_layers(kLayers, kWidth, kHidden));
                 const auto inputs = torch::ones({kRows, kWidth});
                 at::Tensor loss;
                 {
                   const auto meter = accelerator.measure_activations(model);
                   loss = model(inputs).square().mean();
                 }
                 accelerator.backward(loss);
                 return accelerator.memory_account(model).most(sharded::MemoryKind::kActivations);
               })
        .front();
  };
  const auto kept = activations_of(false), recomputed = activations_of(true);
  EXPECT_GE(kept, kLayers * (kWidth + kHidden) * kRows * 4);
  EXPECT_GE(recomputed, kLayers * kWidth * kRows * 4);
  EXPECT_LT(recomputed, kept / 2);
}

// The first meter of a process installs an allocator. Parameters whose storage is older than it are not activations.
void measure_twice() {
  const auto activations = [] {
    return run_ranks(2,
                     [] {
                       Accelerator accelerator(
                           {.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = "SHARD_GRAD_OP"}});
                       auto model = accelerator.prepare(make_layers(2, 16, 128));
                       const auto meter = accelerator.measure_activations(model);
                       model(torch::ones({64, 16}));
                       return accelerator.memory_account(model).most(sharded::MemoryKind::kActivations);
                     })
        .front();
  };
  const auto first = activations();
  std::cerr << (activations() == first ? "equal" : "different") << std::endl;
  std::_Exit(0);
}

TEST(ShardedAcceleratorTest, TheFirstMeterOfAProcessMeasuresWhatLaterOnesDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a new process
  EXPECT_EXIT(measure_twice(), ::testing::ExitedWithCode(0), "equal");
}

// --- offload to files ------------------------------------------------------------------------------------------------

// Trains tensors that are large enough to be moved to a file. `look` sees them after each step.
NamedTensors train_wide(
    const DeepSpeedPlugin& plugin,
    const std::function<void(Accelerator&, const PreparedModel<torch::nn::SequentialImpl>&)>& look = [](auto&, auto&) {
    }) {
  Accelerator accelerator({.deepspeed_plugin = plugin});
  torch::manual_seed(7);
  torch::nn::Sequential net;
  for (int i = 0; i < 3; ++i) net->push_back(torch::nn::Linear(512, 512));
  optim::AdamW adam(net->parameters(), {.lr = 0.05});
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(batch_of(accelerator.process_index(), step, 512, false)).square().mean());
    look(accelerator, model);
  }
  return accelerator.get_state_dict(model);
}

// Three layers of 262,656 elements: a rank keeps half of them, and gathers one layer and the next.
TEST(ShardedAcceleratorTest, Stage3GathersTheElementsOfASequenceOneAtATime) {
  const auto peak_of = [](const DeepSpeedPlugin& plugin) {
    std::int64_t peak = 0;
    run_ranks(2, [&] {
      train_wide(plugin, [&](Accelerator& accelerator, const PreparedModel<torch::nn::SequentialImpl>& model) {
        if (accelerator.is_main_process())
          peak = accelerator.memory_account(model).most(sharded::MemoryKind::kGathered);
      });
    });
    return peak;
  };
  constexpr std::int64_t kLayer = 4 * (512 * 512 + 512);
  EXPECT_EQ(peak_of({.zero_stage = 3}), 2 * kLayer);
  EXPECT_EQ(peak_of({.zero_stage = 3, .stage3_prefetch_bucket_size = 1000}), kLayer);
  EXPECT_EQ(peak_of({.zero_stage = 3, .stage3_max_live_parameters = 400'000}), kLayer);
  EXPECT_EQ(peak_of({.zero_stage = 3, .stage3_param_persistence_threshold = 1'000'000}), 3 * kLayer);
}

// Stage 3 with parameters and optimizer in files.
DeepSpeedPlugin offloading(const std::string& folder) {
  return {.zero_stage = 3,
          .offload_optimizer_device = "nvme",
          .offload_param_device = "nvme",
          .offload_optimizer_nvme_path = folder,
          .offload_param_nvme_path = folder};
}

// Where the memory lies must not change what is computed.
TEST(ShardedAcceleratorTest, ShardsAndMomentsInFilesTrainToTheSameBits) {
  const TemporaryFolder folder;
  for (const int num_ranks : {1, 3}) {
    SCOPED_TRACE(num_ranks);
    const auto expected = run_ranks(num_ranks, [] { return train_wide({.zero_stage = 3}); }).front();
    const auto found = run_ranks(num_ranks, [&] { return train_wide(offloading(folder.path("new/nvme"))); }).front();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(expected[i].second, found[i].second)) << expected[i].first;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path("new/nvme"))) << "files have no names";
  }
}

// Saving and loading in between must not bring everything back to memory.
TEST(ShardedAcceleratorTest, ShardsInFilesTakeNoMemory) {
  const TemporaryFolder folder;
  run_ranks(2, [&] {
    train_wide(offloading(folder.path()),
               [&](Accelerator& accelerator, const PreparedModel<torch::nn::SequentialImpl>& model) {
                 accelerator.save_state(folder.path("saved"));
                 accelerator.load_state(folder.path("saved"));
                 const auto account = accelerator.memory_account(model);
                 EXPECT_EQ(account.now(sharded::MemoryKind::kParameters), 0);
                 EXPECT_LT(account.now(sharded::MemoryKind::kOptimizer), 13'000) << "small tensors stay";
                 for (const auto& parameter : model.parameters()) {
                   if (parameter.numel() > 512) {
                     EXPECT_TRUE(sharded::is_file_backed(parameter));
                   }
                 }
               });
  });
}

// Otherwise a long training would start and fail when it first moves something to the file.
TEST(ShardedAcceleratorTest, AFolderThatCannotBeCreatedIsAnErrorBeforeTheModelExists) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "");
  run_ranks(2, [&] {
    const DeepSpeedPlugin plugin{
        .zero_stage = 2, .offload_optimizer_device = "nvme", .offload_optimizer_nvme_path = file + "/in"};
    EXPECT_THAT(message_of<ConfigError>([&] { Accelerator accelerator({.deepspeed_plugin = plugin}); }),
                HasSubstr("deepspeed_plugin: offload to nvme: " + file + "/in: cannot be created"));
  });
}

}  // namespace
}  // namespace accel::testing
