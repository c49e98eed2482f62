// Batch sizes of a DeepSpeed file: the number of micro-batches per step, and the loaders that must fit.
#include <gmock/gmock.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <tuple>

#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::deepspeed_batch_test {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;

class DeepSpeedBatchTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  [[nodiscard]] static int num_ranks() { return std::get<int>(GetParam()); }
  [[nodiscard]] AcceleratorOptions with_keys(const std::string& keys) {
    return {.deepspeed_plugin = DeepSpeedPlugin{
                .hf_ds_config = folder_.write("ds.json", R"({"zero_optimization": {"stage": 2}, )" + keys + "}")}};
  }
  /// Runs `body` on every rank.
  static void on_ranks(const std::function<void(RankContext&)>& body) {
    run_ranks(std::get<Backend>(GetParam()), num_ranks(), [&](RankContext& rank) {
      rank.warn = [](const std::string&) {};
      body(rank);
    });
  }

  CleanEnvironment environment_{{"ACCELERATE_"}};
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, DeepSpeedBatchTest,
                         Combine(Values(Backend::kSim, Backend::kGlooThreads), Values(1, 2, 4)), [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
                         });

// Trains an epoch of 48 samples per rank in batches of `batch_size`, after a pass over a loader of other batches.
// Returns the number of optimizer steps.
int num_steps(Accelerator& accelerator, int batch_size) {
  set_seed(3);
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.125);
  const auto samples = torch::ones({48 * accelerator.num_processes(), 2});
  auto [model, optimizer, loader, evaluation] =
      accelerator.prepare(net, sgd, DataLoader(TensorDataset(samples), {.batch_size = batch_size}),
                          DataLoader(TensorDataset(samples), {.batch_size = 3 * accelerator.num_processes()}));
  int steps = 0;
  for (auto& [row] : evaluation) {
    const torch::NoGradGuard no_grad;
    model(row);
    break;
  }
  for (auto& [rows] : loader) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(rows).mean());
    steps += accelerator.sync_gradients() ? 1 : 0;
  }
  return steps;
}

TEST_P(DeepSpeedBatchTest, MicroBatchesPerStepAreDerived) {
  const auto options =
      with_keys(fmt::format(R"("train_batch_size": {}, "train_micro_batch_size_per_gpu": 4)", 4 * 3 * num_ranks()));
  on_ranks([&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
    EXPECT_EQ(num_steps(accelerator, 4), 4);
  });
}

TEST_P(DeepSpeedBatchTest, AContradictionIsAnErrorBeforeTraining) {
  const auto options =
      with_keys(R"("train_batch_size": 60, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2)");
  on_ranks([&](RankContext& rank) {
    EXPECT_THAT(message_of<ConfigError>([&] { Accelerator accelerator(options, rank); }),
                AllOf(HasSubstr(fmt::format("train_batch_size: expected {}", 8 * num_ranks())), HasSubstr("got 60")));
  });
}

// The Accelerator's own number takes the place of "auto".
TEST_P(DeepSpeedBatchTest, AutomaticStepsAreTheProgramsSteps) {
  auto options =
      with_keys(fmt::format(R"("train_batch_size": {}, "gradient_accumulation_steps": "auto")", 12 * num_ranks()));
  options.gradient_accumulation_steps = 2;
  on_ranks([&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    EXPECT_EQ(num_steps(accelerator, 6), 4);
  });
  on_ranks([&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    EXPECT_THAT(message_of<ConfigError>([&] { num_steps(accelerator, 12); }),
                AllOf(HasSubstr("batches of 6 per rank are expected"), HasSubstr("a loader with batches of 12"),
                      HasSubstr("set the loader's batch_size to 6")));
  });
}

TEST_P(DeepSpeedBatchTest, ALoaderOfOtherMicroBatchesIsAnError) {
  const auto options = with_keys(R"("train_micro_batch_size_per_gpu": 4)");
  on_ranks([&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    EXPECT_THAT(message_of<ConfigError>([&] { num_steps(accelerator, 8); }),
                HasSubstr("ds.json: batches of 4 per rank are expected (train_micro_batch_size_per_gpu"));
  });
  on_ranks([&](RankContext& rank) {
    auto splitting = options;
    splitting.split_batches = true;
    Accelerator accelerator(splitting, rank);
    EXPECT_EQ(num_steps(accelerator, 4 * num_ranks()), 12);
  });
}

// The default of DummyScheduler, where the file has "auto".
TEST_P(DeepSpeedBatchTest, AWarmUpWithoutStepsIsDeepSpeedsShortest) {
  const auto options = with_keys(R"("optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}})");
  on_ranks([&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    torch::nn::Linear net(2, 1);
    DummyOptim adam{.params = net->parameters(), .lr = 0.5};
    DummyScheduler warmup(adam);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, warmup);
    for (int step = 0; step < 3; ++step) accelerator.backward(model(torch::ones({1, 2})).mean());
    EXPECT_EQ(optimizer.lr(), 0.5);
  });
}

}  // namespace
}  // namespace accel::testing::deepspeed_batch_test
