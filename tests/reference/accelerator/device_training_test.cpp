// All training paths on a device other than the CPU (tests/support/fake_device) have the CPU's bits, and nothing that
// they do on the device is unordered.
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/device.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/optim/optimizers/fused_sgd.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "tests/reference/training_state/saved_training.hpp"
#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/execution.hpp"
#include "tests/support/fake_device/memory.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::device_training {
namespace {

using saved_training::Training;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Path {
  const char* name;
  std::function<AcceleratorOptions()> options;
  double host_waits = 0;  // per steady step of a rank
  int fewest_ranks = 1;
};

AcceleratorOptions sharded(const std::string& strategy, bool offloads = false) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                                        .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"},
                                                        .cpu_offload = offloads}};
}

AcceleratorOptions accumulating() {
  auto options = saved_training::ddp();
  options.gradient_accumulation_steps = 3;
  return options;
}

AcceleratorOptions with_precision(AcceleratorOptions options, const std::string& precision) {
  options.mixed_precision = precision;
  return options;
}

AcceleratorOptions with_masters() {
  auto options = with_precision(saved_training::ddp(), "bf16");
  options.master_weights = true;
  return options;
}

// Compresses every matrix from the third step on.
AcceleratorOptions with_power_sgd() {
  auto options = saved_training::ddp();
  options.ddp_kwargs.comm_hook = "power_sgd";
  options.ddp_kwargs.comm_state_option = {.start_powerSGD_iter = 2, .min_compression_rate = 0.5};
  return options;
}

const std::vector<Path> kPaths{
    // LibTorch's Reducer reads which parameters any rank has used.
    {"ddp_finds_unused_parameters", [] { return saved_training::ddp(); }, /*host_waits=*/1},
    // DDP, and with it the hook, runs in a group of one on CPUs only, as in Accelerate.
    {"ddp_power_sgd", [] { return with_power_sgd(); }, /*host_waits=*/1, /*fewest_ranks=*/2},
    {"accumulation", [] { return accumulating(); }, /*host_waits=*/1.0 / 3},
    // The GradScaler reads whether a gradient is infinite.
    {"ddp_fp16", [] { return with_precision(saved_training::ddp(), "fp16"); }, /*host_waits=*/2},
    // A sharded unit reads whether any rank has used a parameter that this rank's loss did not use: three units here.
    {"full_shard_fp16", [] { return with_precision(sharded("FULL_SHARD"), "fp16"); }, /*host_waits=*/4},
    {"ddp_master_weights", [] { return with_masters(); }, /*host_waits=*/1},
    {"full_shard_bf16", [] { return with_precision(sharded("FULL_SHARD"), "bf16"); }, /*host_waits=*/3},
    {"full_shard", [] { return sharded("FULL_SHARD"); }, /*host_waits=*/3},
    {"shard_grad_op", [] { return sharded("SHARD_GRAD_OP"); }, /*host_waits=*/3},
    // Gradients arrive on the host before the optimizer steps there.
    {"offload", [] { return sharded("FULL_SHARD", /*offloads=*/true); }, /*host_waits=*/1},
    {"zero_1", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}}; },
     /*host_waits=*/1},
    {"zero_2", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}; },
     /*host_waits=*/1},
    {"zero_3", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}}; },
     /*host_waits=*/1},
};

class DeviceTrainingTest : public ::testing::TestWithParam<Path> {
 protected:
  DeviceTrainingTest() { fake_device::races().clear(); }

  /// The state of every rank after a training on its own device, or on the CPU.
  static std::vector<std::string> train(const AcceleratorOptions& options, int num_ranks, bool on_device) {
    return collect_ranks(Backend::kSim, num_ranks, [&](RankContext& rank) {
      std::optional<fake_device::DeviceScope> scope;
      if (on_device) scope.emplace(rank);
      Training training(options);
      training.train(5);
      return training.state();
    });
  }
};

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

INSTANTIATE_TEST_SUITE_P(All, DeviceTrainingTest, ::testing::ValuesIn(kPaths),
                         [](const auto& path) { return std::string(path.param.name); });

TEST_P(DeviceTrainingTest, HasTheBitsOfTheCpuAndNoRace) {
  for (int num_ranks = GetParam().fewest_ranks; num_ranks <= 3; ++num_ranks) {
    const auto of_cpu = train(GetParam().options(), num_ranks, /*on_device=*/false),
               of_device = train(GetParam().options(), num_ranks, /*on_device=*/true);
    EXPECT_EQ(of_cpu.front(), of_device.front()) << num_ranks << " ranks";
    EXPECT_THAT(fake_device::races().races(), IsEmpty());
  }
}

// PyTorch waits twice per layer.
TEST(DeviceSyncBatchNormTest, HasTheBitsOfTheCpuAndDoesNotWait) {
  const auto train = [](bool on_device) {
    return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      std::optional<fake_device::DeviceScope> scope;
      if (on_device) scope.emplace(rank);
      rank.listener = nullptr;
      set_seed(2);
      torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
      convert_sync_batchnorm(*net);
      Accelerator accelerator;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto inputs = torch::randn({4, 3}).mul(rank.rank + 1).to(rank.device);
      const auto take_steps = [&](int count) {
        for (int step = 0; step < count; ++step) {
          accelerator.backward(model(inputs).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      take_steps(2);  // DDP has agreed on its buckets
      EXPECT_EQ(fake_device::counts_during(rank, [&] { take_steps(3); }).host_waits, 0);
      std::string state;
      for (const auto& [name, tensor] : accelerator.get_state_dict(model)) state += name + pack(tensor.cpu());
      return state;
    });
  };
  fake_device::races().clear();
  EXPECT_EQ(train(/*on_device=*/false), train(/*on_device=*/true));
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

// A model that may skip its last unit.
struct SkippingImpl : torch::nn::Module {
  SkippingImpl()
      : first(register_module("first", torch::nn::Linear(8, 8))),
        second(register_module("second", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto values = accel::call(first, x);
    return skips ? values : accel::call(second, values);
  }
  torch::nn::Linear first, second;
  bool skips = false;
};
TORCH_MODULE(Skipping);

// The unit's memory goes to one of the next tensors on the stream that computes.
TEST(DeviceSkippedUnitTest, AUnitGatheredAheadAndNotUsedIsFreedAfterItsGather) {
  fake_device::races().clear();
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = "SHARD_GRAD_OP",
                                                                           .wrap_modules = {"first", "second"}}});
    Skipping net;
    optim::SGD sgd(net->parameters(), {.lr = 0.1});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto inputs = torch::ones({8, 8}).to(rank.device);
    for (int step = 0; step < 4; ++step) {
      net->skips = step > 0;
      accelerator.backward(model(inputs).square().mean());
      std::vector<at::Tensor> next;
      for (int i = 0; i < 50; ++i) next.push_back(torch::zeros({8, 8}, inputs.options()));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

// The optimizer changes offloaded shards on the host, which the device may still be reading for what came before.
void expect_old_shards_are_read(const std::function<void(Training& training, const at::Tensor& inputs)>& before_step) {
  fake_device::races().clear();
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    Training training(sharded("FULL_SHARD", /*offloads=*/true));
    const auto inputs = torch::ones({1, 4}).to(rank.device);
    for (int step = 0; step < 2; ++step) {
      training.accelerator.backward(training.model(inputs).square().mean());
      before_step(training, inputs);
      training.optimizer.step();
      training.optimizer.zero_grad();
    }
    wait_for(rank.device);
  });
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

TEST(DeviceOffloadTest, AnEvaluationBeforeTheStepReadsTheOldShards) {
  expect_old_shards_are_read([](Training& training, const at::Tensor& inputs) {
    const torch::NoGradGuard no_grad;
    training.model(inputs);
  });
}

TEST(DeviceOffloadTest, GatheringParametersBeforeTheStepReadsTheOldShards) {
  expect_old_shards_are_read([](Training& training, const at::Tensor&) {
    const auto full = training.accelerator.gathered_parameters(training.model);
  });
}

TEST(DeviceMemoryTest, ActivationsAreMeasuredOnTheDevice) {
  constexpr int kRows = 512, kWidth = 16, kHidden = 128;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto model = accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(kWidth, kHidden), torch::nn::Tanh(),
                                                           torch::nn::Linear(kHidden, kWidth)));
    const auto inputs = torch::ones({kRows, kWidth}).to(rank.device);
    at::Tensor loss;
    {
      const auto meter = accelerator.measure_activations(model);
      loss = model(inputs).square().mean();
    }
    accelerator.backward(loss);
    const auto bytes = accelerator.memory_account(model).most(sharded::MemoryKind::kActivations);
    EXPECT_GE(bytes, kRows * (kHidden + kWidth) * 4) << "the output of Tanh and of the model";
    EXPECT_LT(bytes, kRows * (2 * kHidden + 4 * kWidth) * 4);
  });
}

TEST(DeviceOptimizerTest, AnOptimizerThatStepsParameterByParameterIsReported) {
  const auto warnings_of = [](auto make_optimizer) {
    std::vector<std::string> warnings;
    run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
      const fake_device::DeviceScope on_device(rank);
      rank.warn = [&](const std::string& text) { warnings.push_back(text); };
      torch::nn::Linear net(2, 2);
      auto optimizer = make_optimizer(net->parameters());
      Accelerator().prepare(net, optimizer);
    });
    return warnings;
  };
  EXPECT_THAT(
      warnings_of([](auto parameters) { return torch::optim::AdamW(parameters, 0.1); }),
      ElementsAre("prepare: torch::optim::AdamW steps one parameter after another, which is slow on fake:0; use "
                  "accel::optim::AdamW of <accel/optim.hpp>, which steps all of them together"));
  EXPECT_THAT(warnings_of([](auto parameters) { return optim::AdamW(parameters, {.lr = 0.1}); }), IsEmpty());
}

// An infinity in the third of six steps. Without a schedule, which must know whether to advance, nothing waits.
template <typename Optimizer, typename Options>
void expect_skips_on_the_device(const Options& options, const AcceleratorOptions& accelerator_options) {
  const auto train = [&](bool on_device) {
    return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      std::optional<fake_device::DeviceScope> scope;
      if (on_device) scope.emplace(rank);
      rank.listener = nullptr;
      set_seed(2);
      Accelerator accelerator(accelerator_options);
      torch::nn::Linear net(3, 4);
      Optimizer unprepared(net->parameters(), options);
      auto [model, optimizer] = accelerator.prepare(net, unprepared);
      const auto inputs = torch::randn({4, 3}).mul(rank.rank + 1).to(rank.device);
      const auto take_steps = [&](int count, double factor) {
        for (int step = 0; step < count; ++step) {
          accelerator.backward(model(inputs).square().mean() * factor);
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      take_steps(2, 1);
      const auto waits = [&](int count, double factor) {
        return fake_device::counts_during(rank, [&] { take_steps(count, factor); }).host_waits;
      };
      if (on_device) {
        EXPECT_EQ(waits(1, INFINITY), 0);
        EXPECT_TRUE(optimizer.step_was_skipped());
        EXPECT_EQ(waits(3, 1), 0);
        EXPECT_FALSE(optimizer.step_was_skipped());
      } else {
        take_steps(1, INFINITY);
        take_steps(3, 1);
      }
      std::string state;
      for (const auto& [name, tensor] : accelerator.get_state_dict(model)) state += name + pack(tensor.cpu());
      return state + std::to_string(accelerator.scaler()->get_scale()) + pack(optim::state_dict(unprepared));
    });
  };
  fake_device::races().clear();
  EXPECT_EQ(train(/*on_device=*/false), train(/*on_device=*/true));
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

TEST(DeviceScalerTest, FusedOptimizersSkipAnInfiniteStepOnTheDevice) {
  const AcceleratorOptions fp16{.mixed_precision = "fp16"};
  expect_skips_on_the_device<optim::AdamW>(optim::AdamWOptions{.lr = 0.1, .amsgrad = true}, fp16);
  expect_skips_on_the_device<optim::Adam>(optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1}, fp16);
  expect_skips_on_the_device<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, fp16);
  expect_skips_on_the_device<optim::SGD>(optim::SGDOptions{.lr = 0.1},
                                         {.mixed_precision = "fp16", .fsdp_plugin = FullyShardedDataParallelPlugin{}});
}

// Workers pin with pin_memory, else the rank's thread does.
TEST(DeviceLoaderTest, BatchesAreCopiedBesideComputation) {
  for (const bool pin_memory : {false, true}) {
    run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
      const fake_device::DeviceScope on_device(rank);
      Accelerator accelerator;
      DataLoader loader(TensorDataset(torch::arange(8)), {.batch_size = 2, .num_workers = 2});
      if (pin_memory) loader = DataLoader(loader.dataset(), {.batch_size = 2, .num_workers = 2, .pin_memory = true});
      auto batches = accelerator.prepare(loader);
      for (auto& [numbers] : batches) {
        EXPECT_NE(fake_device::stream_of_memory(numbers), fake_device::key_of(fake_device::current_stream(0)));
        numbers.mul(2);
      }
    });
  }
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

TEST(DeviceLoaderTest, APlainLoaderPinsItsBatchesOnRequest) {
  run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    DataLoader pinned(TensorDataset(torch::arange(8)), {.num_workers = 1, .pin_memory = true});
    for (auto& [numbers] : pinned) EXPECT_TRUE(numbers.is_pinned());
    DataLoader plain(TensorDataset(torch::arange(8)), {.num_workers = 1});
    for (auto& [numbers] : plain) EXPECT_FALSE(numbers.is_pinned());
  });
}

TEST(DevicePlacementTest, IsChosenPerObject) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    Accelerator accelerator;
    torch::nn::Linear moved(2, 2), kept(2, 2), third(2, 2);
    DataLoader loader(TensorDataset(torch::ones({4, 2})), {.batch_size = 2});
    auto [model, other, batches] = accelerator.prepare({.device_placement = {true, false, false}}, moved, kept, loader);
    EXPECT_FALSE(moved->weight.is_cpu());
    EXPECT_TRUE(kept->weight.is_cpu());
    for (auto& [rows] : batches) EXPECT_TRUE(rows.is_cpu());
    accelerator.prepare_model(third.ptr(), {.device_placement = false});
    EXPECT_TRUE(third->weight.is_cpu());
    Preparation::PrepareOptions named{.device_placement = {false}};
    auto fourth = accelerator.prepare(named, third);
    EXPECT_TRUE(accelerator.unwrap_model(fourth)->weight.is_cpu());
    for (auto& [rows] : accelerator.prepare_data_loader(loader)) EXPECT_FALSE(rows.is_cpu());
    EXPECT_THAT([&] { accelerator.prepare({.device_placement = {true}}, moved, kept); },
                ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr("1 entries for 2 objects")));
  });
}

TEST(DeviceLibrariesTest, SwitchesAreThoseOfTheProcess) {
  auto& libraries = at::globalContext();
  run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
    const AcceleratorOptions options{
        .backends_kwargs = {.allow_tf32 = true, .cudnn_benchmark = true, .cudnn_deterministic = true}};
    Accelerator on_cpu(options);
    EXPECT_FALSE(libraries.allowTF32CuBLAS() || libraries.benchmarkCuDNN() || libraries.deterministicCuDNN());
    const fake_device::DeviceScope on_device(rank);
    Accelerator{options};
    EXPECT_TRUE(libraries.allowTF32CuBLAS() && libraries.allowTF32CuDNN() && libraries.benchmarkCuDNN() &&
                libraries.deterministicCuDNN());
    Accelerator{{}};
    EXPECT_TRUE(libraries.allowTF32CuBLAS());
    Accelerator{{.backends_kwargs = {.allow_tf32 = false, .cudnn_benchmark = false, .cudnn_deterministic = false}}};
  });
  EXPECT_FALSE(libraries.allowTF32CuBLAS() || libraries.benchmarkCuDNN() || libraries.deterministicCuDNN());
}

// The host runs ahead of the device, except where the path says so. What it copies meanwhile comes from pinned memory.
TEST_P(DeviceTrainingTest, ASteadyStepWaitsAsOftenAsItsPathSays) {
  constexpr int kRanks = 2, kSteps = 6;
  run_ranks(Backend::kSim, kRanks, [](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    rank.listener = nullptr;  // the simulator's compares the ranks' parameters on the host
    Training training(GetParam().options());
    training.train(3);  // DDP has agreed on its buckets, and PowerSGD has drawn its matrices
    const auto counts = fake_device::counts_during(rank, [&] { training.train(kSteps); });
    EXPECT_DOUBLE_EQ(static_cast<double>(counts.host_waits), GetParam().host_waits * kRanks * kSteps);
    EXPECT_LE(counts.pageable_copies, counts.host_waits);
  });
}

}  // namespace
}  // namespace accel::testing::device_training
