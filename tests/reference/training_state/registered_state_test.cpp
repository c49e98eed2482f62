// Modules and optimizers that a program registers for checkpointing: files have complete tensors in every layout.
#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <memory>

#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/support/divided_net.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::registered_state_test {
namespace {

using ::testing::HasSubstr;

ParallelismConfig layout(int num_ranks) {
  return num_ranks == 1 ? ParallelismConfig{} : ParallelismConfig{.tp_size = num_ranks};
}

// A trained net and an average of its weights, which an optimizer steps.
struct Averaged {
  explicit Averaged(int num_ranks, std::uint64_t seed)
      : accelerator({.parallelism_config = layout(num_ranks)}),
        net(std::make_shared<DividedNet>(accelerator.mesh())),
        average(std::make_shared<DividedNet>(accelerator.mesh())),
        adam(std::make_shared<optim::Adam>(average->parameters(), optim::AdamOptions{.lr = 0.5})) {
    fill(*net, seed);
    fill(*average, seed + 1);
    const auto model = accelerator.prepare(net);
    accelerator.register_for_checkpointing(average, adam);
  }
  void step() {
    average->forward(dyadic({8, kWidth}, make_generator(7), 2)).square().sum().backward();
    adam->step();
  }
  Accelerator accelerator;
  std::shared_ptr<DividedNet> net, average;
  std::shared_ptr<optim::Adam> adam;
};

// Complete tensors of the average and its optimizer's first moments.
std::vector<at::Tensor> values_of(Averaged& averaged) {
  const auto cuts = parallel::parameter_cuts(*averaged.average);
  std::vector<at::Tensor> values;
  const auto dict = optim::state_dict(*averaged.adam);
  const auto& state = dict.at("state");
  int index = 0;
  for (const auto& item : averaged.average->named_parameters()) {
    const auto moment = state.at(std::to_string(index++)).at("exp_avg").as<at::Tensor>();
    for (const auto& tensor : {item.value().detach(), moment}) {
      const auto cut = cuts.find(item.key());
      values.push_back(cut == cuts.end() ? tensor.clone() : cut->second.whole_of(tensor).clone());
    }
  }
  return values;
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

class RegisteredStateTest : public ::testing::TestWithParam<Backend> {};

TEST_P(RegisteredStateTest, DividedModulesAndOptimizersLoadUnderEveryOtherLayout) {
  const TemporaryFolder folder;
  for (const int saving : {1, 2, 4}) {
    const auto path = folder.path("state" + std::to_string(saving));
    std::vector<at::Tensor> saved;
    testing::run_ranks(GetParam(), saving, [&](RankContext& rank) {
      Averaged averaged(saving, 3);
      averaged.step();
      averaged.accelerator.save_state(path);
      auto values = values_of(averaged);
      if (rank.rank == 0) saved = std::move(values);
    });
    for (const int loading : {1, 2, 4}) {
      SCOPED_TRACE(std::to_string(saving) + " -> " + std::to_string(loading));
      testing::run_ranks(GetParam(), loading, [&](RankContext&) {
        Averaged averaged(loading, 30);
        averaged.accelerator.load_state(path);
        expect_equal(values_of(averaged), saved);
      });
    }
  }
}

TEST_P(RegisteredStateTest, AFailedLoadLeavesDividedModulesUnchanged) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), 2, [&](RankContext&) {
    Averaged averaged(2, 3);
    averaged.step();
    averaged.accelerator.save_state(folder.path("state"));
  });
  testing::run_ranks(GetParam(), 2, [&](RankContext&) {
    Averaged averaged(2, 30);
    averaged.step();
    const auto before = values_of(averaged);
    torch::nn::Linear another(3, 3);
    averaged.accelerator.register_for_checkpointing(another);
    EXPECT_THAT(message_of<CheckpointError>([&] { averaged.accelerator.load_state(folder.path("state")); }),
                HasSubstr("3 objects are registered"));
    expect_equal(values_of(averaged), before);
  });
}

TEST_P(RegisteredStateTest, PartsOfAnotherLayerAreRefused) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), 2, [&](RankContext&) {
    Accelerator accelerator({.parallelism_config = layout(2)});
    auto layer = std::make_shared<parallel::ColumnParallelLinearImpl>(
        parallel::ParallelLinearOptions{.in = 2, .out = 4}, accelerator.mesh()["tp"]);
    accelerator.register_for_checkpointing(layer);
    accelerator.save_state(folder.path("state"));
  });
  testing::run_ranks(GetParam(), 2, [&](RankContext&) {
    Accelerator accelerator({.parallelism_config = layout(2)});
    auto layer = std::make_shared<parallel::ColumnParallelLinearImpl>(
        parallel::ParallelLinearOptions{.in = 2, .out = 8}, accelerator.mesh()["tp"]);
    accelerator.register_for_checkpointing(layer);
    EXPECT_THAT(message_of<CheckpointError>([&] { accelerator.load_state(folder.path("state")); }),
                HasSubstr("'weight' has sizes [4, 2], the complete module's are [8, 2]"));
  });
}

TEST_P(RegisteredStateTest, ASecondRegistrationOfAShardedModelIsRefused) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), 2, [&](RankContext&) {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    torch::nn::Linear net(4, 2);
    const auto model = accelerator.prepare(net);
    accelerator.register_for_checkpointing(net);
    EXPECT_THAT(message_of<StateError>([&] { accelerator.save_state(folder.path("state")); }),
                HasSubstr("object 0 is a module with parameters of a prepared sharded model"));
  });
}

// torch::save would write the rank's own parts.
TEST_P(RegisteredStateTest, LibTorchCannotSaveOrLoadDividedModels) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), 2, [&](RankContext& rank) {
    Accelerator accelerator({.parallelism_config = layout(2)});
    auto net = std::make_shared<DividedNet>(accelerator.mesh());
    auto model = accelerator.prepare(net);
    const auto path = folder.path("model" + std::to_string(rank.rank) + ".pt");
    EXPECT_THAT(message_of<StateError>([&] { torch::save(model, path); }),
                HasSubstr("torch::save: ranks divide the parameters"));
    EXPECT_THAT(message_of<StateError>([&] { torch::save(net, path); }), HasSubstr("use accelerator.save_model"));
    torch::save(torch::nn::Linear(3, 3), path);
    EXPECT_THAT(message_of<StateError>([&] { torch::load(model, path); }), HasSubstr("use accelerator.save_model"));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, RegisteredStateTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace accel::testing::registered_state_test
