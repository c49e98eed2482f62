// Hooks of a program on modules of prepared and dispatched models, and what prepare does with dispatched models.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/cuda.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <accel/accel.hpp>
#include <accel/offload.hpp>
#include <accel/testing.hpp>

#include "tests/reference/offload/dispatched_models.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::model_hooks_test {
namespace {

using dispatched_models::kWidth;
using dispatched_models::Net;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Counts its calls, and looks at the module's first parameter and at its output. Scales the output.
struct Watching : ModelHook {
  explicit Watching(double factor = 1) : factor(factor) {}
  void pre_forward(torch::nn::Module& module, CallValues& arguments) override {
    ++num_calls;
    numel = module.parameters().front().numel();
    is_meta = module.parameters().front().is_meta();
    has_autocast = at::autocast::is_autocast_enabled(at::kCPU);
    EXPECT_EQ(arguments.size(), 1u);
  }
  void post_forward(torch::nn::Module&, CallValues& output) override {
    output.map_tensors([&](const at::Tensor& tensor) { return tensor * factor; });
  }
  double factor;
  int num_calls = 0;
  std::int64_t numel = 0;
  bool is_meta = false, has_autocast = false;
};

struct Options {
  AcceleratorOptions accelerator = {};
  bool has_hooks = true;
};

AcceleratorOptions sharded(bool recomputes) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"},
                                                        .activation_checkpointing = recomputes}};
}

struct Run {
  at::Tensor weights;
  std::vector<int> calls;           // of the model's hook and the blocks' hooks
  std::vector<std::int64_t> numel;  // what they saw
  bool has_autocast = false;
};

// Two steps on each rank. The hooks double the output of each block and negate that of the model.
std::vector<Run> train(const Options& options) {
  return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    torch::manual_seed(3);
    Net net(2);
    std::vector<std::shared_ptr<Watching>> hooks;
    const auto watch = [&](torch::nn::Module& module, double factor) {
      hooks.push_back(std::make_shared<Watching>(factor));
      if (options.has_hooks) add_hook_to_module(module, hooks.back());
    };
    watch(*net, -1);
    for (const auto& block : *net->blocks) watch(*block, 2);
    Accelerator accelerator(options.accelerator);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(torch::tensor({rank.rank, 1, 5})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    Run run{.weights = {}, .calls = {}, .numel = {}, .has_autocast = hooks.front()->has_autocast};
    for (const auto& hook : hooks) {
      run.calls.push_back(hook->num_calls);
      run.numel.push_back(hook->numel);
    }
    const auto full = accelerator.gathered_parameters(model);
    run.weights = torch::cat({net->embedding->weight.detach().flatten(), net->parameters().back().detach().flatten()});
    return run;
  });
}

constexpr auto kBlockNumel = 2 * kWidth * kWidth;

TEST(ModelHooksTest, HooksRunOnEveryRankUnderDdp) {
  const auto plain = train({.has_hooks = false}), hooked = train({});
  for (const auto& run : hooked) {
    EXPECT_THAT(run.calls, ElementsAre(2, 2, 2));
    EXPECT_TRUE(torch::equal(run.weights, hooked.front().weights));
    EXPECT_FALSE(torch::equal(run.weights, plain.front().weights));
  }
  for (const auto& run : plain) EXPECT_THAT(run.calls, Each(0));
}

// A unit's hook sees its complete parameters.
TEST(ModelHooksTest, HooksRunInsideShardedUnits) {
  const auto replicated = train({}), shards = train({.accelerator = sharded(/*recomputes=*/false)});
  for (const auto& run : shards) {
    EXPECT_THAT(run.calls, ElementsAre(2, 2, 2));
    EXPECT_THAT(run.numel, ElementsAre(20 * kWidth, kBlockNumel, kBlockNumel));
    EXPECT_TRUE(torch::allclose(run.weights, replicated.front().weights));
  }
}

TEST(ModelHooksTest, HooksRunAgainWhenActivationsAreRecomputed) {
  const auto kept = train({.accelerator = sharded(false)}), recomputed = train({.accelerator = sharded(true)});
  for (const auto& run : recomputed) {
    EXPECT_THAT(run.calls, ElementsAre(2, 4, 4));
    EXPECT_TRUE(torch::equal(run.weights, kept.front().weights));
  }
}

TEST(ModelHooksTest, HooksRunUnderAutocast) {
  for (const auto& run : train({.accelerator = {.mixed_precision = "bf16"}})) {
    EXPECT_THAT(run.calls, ElementsAre(2, 2, 2));
    EXPECT_TRUE(run.has_autocast);
  }
}

class DispatchedHooksTest : public dispatched_models::DispatchTest {};

TEST_F(DispatchedHooksTest, AHookOfADispatchedModelSeesLoadedWeights) {
  const torch::NoGradGuard no_grad;
  Net net(2);
  const auto expected = net->forward(tokens_);
  auto model = disk_offload(net, folder_.path("weights"));
  const auto hook = std::make_shared<Watching>();
  add_hook_to_module(*net->blocks->ptr(1), hook);
  EXPECT_TRUE(torch::equal(model(tokens_), expected));
  EXPECT_EQ(hook->num_calls, 1);
  EXPECT_FALSE(hook->is_meta);
  EXPECT_TRUE(net->blocks->ptr(1)->parameters().front().is_meta());
}

const DeviceMap kSpread{{"0", "cpu"}, {"1", "cpu"}, {"2", "disk"}, {"3", "disk"}};

TEST_F(DispatchedHooksTest, VerifyDeviceMapFindsModelsThatAreSpread) {
  run_ranks(1, [&](RankContext& rank) {
    Accelerator accelerator;
    auto net = dispatched_models::layers(2);
    const auto folder = folder_.path("weights" + std::to_string(rank.rank));
    EXPECT_FALSE(accelerator.verify_device_map(net));
    {
      const auto model = dispatch_model(net, kSpread, {.offload_dir = folder});
      EXPECT_TRUE(accelerator.verify_device_map(model));
      EXPECT_TRUE(accelerator.verify_device_map(net));
      EXPECT_TRUE(accelerator.verify_device_map(*net));
    }
    EXPECT_FALSE(accelerator.verify_device_map(net));
    const auto one_place = disk_offload(dispatched_models::layers(2), folder);
    EXPECT_FALSE(accelerator.verify_device_map(one_place));
    EXPECT_FALSE(accelerator.verify_device_map(one_place.module()));
  });
}

// A simulated rank is a distributed one; a single process is not.
TEST_F(DispatchedHooksTest, OnlyASingleProcessPreparesAModelThatIsSpread) {
  const auto prepare = [&](bool as_handle, const std::string& folder) {
    Accelerator accelerator;
    auto net = dispatched_models::layers(2);
    auto model = dispatch_model(net, kSpread, {.offload_dir = folder_.path(folder)});
    if (as_handle) {
      accelerator.prepare(model);
    } else {
      accelerator.prepare(net);
    }
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model(input_).is_meta());
  };
  for (const bool as_handle : {false, true}) {
    const auto message = message_of<std::exception>(
        [&] { run_ranks(2, [&](RankContext& rank) { prepare(as_handle, "ranks" + std::to_string(rank.rank)); }); });
    EXPECT_THAT(message, AllOf(HasSubstr("can't be trained in any distributed mode"), HasSubstr("--num_processes=1")));
    const auto rank = make_single_rank();
    const RankScope scope(*rank);
    prepare(as_handle, "single");
  }
}

TEST(AvailableTest, AnswersAreThoseOfLibTorchAndOfThisLibrary) {
  EXPECT_EQ(is_cuda_available(), torch::cuda::is_available());
  static_assert(is_bf16_available() && is_fp16_available() && is_fp8_available());
  static_assert(is_torch_distributed_available() && is_tensorboard_available());
}

}  // namespace
}  // namespace accel::testing::model_hooks_test
