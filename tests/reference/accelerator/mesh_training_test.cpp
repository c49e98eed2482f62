// Training on a mesh whose layers are divided over ranks equals training on one rank: data, gradients, clipping, saved
// state. Values are dyadic where bits must agree.
#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/modules/parameter_cut.hpp"
#include "reference/tensor_parallel/layers.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/cut_values.hpp"
#include "tests/support/divided_net.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::mesh_training_test {
namespace {

using namespace accel::parallel;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Samples (8, kWidth), of which a step uses all: each data-parallel rank its share.
at::Tensor samples(int step) { return dyadic({8, kWidth}, make_generator(20 + step), 2); }

struct Run {
  NamedTensors state;
  std::vector<double> norms;
};

struct RunOptions {
  ParallelismConfig mesh = {};
  std::optional<FullyShardedDataParallelPlugin> plugin = {};
  std::string save_to = {}, load_from = {};
  int first_step = 0, num_steps = 2;
  bool adam = false;
};

Run trained(const RunOptions& options) {
  Accelerator accelerator({.parallelism_config = options.mesh, .fsdp_plugin = options.plugin});
  auto net = std::make_shared<DividedNet>(accelerator.mesh());
  fill(*net);
  std::shared_ptr<torch::optim::Optimizer> chosen;
  if (options.adam)
    chosen = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 0.01});
  else
    chosen = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 1.0 / 16});
  auto [model, optimizer] = accelerator.prepare(net, chosen);
  if (!options.load_from.empty()) accelerator.load_state(options.load_from);
  Run run;
  for (int step = options.first_step; step < options.first_step + options.num_steps; ++step) {
    const auto own = samples(step).chunk(accelerator.data_parallel_size())[accelerator.data_parallel_rank()];
    const auto output = model(own);
    accelerator.backward((output * output).sum() / own.size(0));
    run.norms.push_back(accelerator.clip_grad_norm_(model.parameters(), 1e9).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!options.save_to.empty()) accelerator.save_state(options.save_to);
  run.state = accelerator.get_state_dict(model);
  return run;
}

NamedTensors sorted(NamedTensors state) {
  std::sort(state.begin(), state.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return state;
}

void expect_equal(const NamedTensors& found, const NamedTensors& expected, double tolerance = 0) {
  ASSERT_EQ(found.size(), expected.size());
  const auto left = sorted(found), right = sorted(expected);
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].first, right[i].first);
    ASSERT_EQ(left[i].second.sizes(), right[i].second.sizes()) << left[i].first;
    EXPECT_TRUE(tolerance == 0 ? at::equal(left[i].second, right[i].second)
                               : at::allclose(left[i].second, right[i].second, tolerance, tolerance))
        << left[i].first;
  }
}

FullyShardedDataParallelPlugin second_version() { return {.fsdp_version = 2, .state_dict_type = "FULL_STATE_DICT"}; }

int num_ranks(const ParallelismConfig& mesh) { return static_cast<int>(mesh.total_size()); }

// One step, since the products of a second one would need more bits than float64 has.
TEST(MeshTrainingTest, EqualsOneRankInEveryBit) {
  const auto expected = run_ranks(1, [] { return trained({.num_steps = 1}); }).front();
  for (const auto& mesh : {ParallelismConfig{.tp_size = 2}, ParallelismConfig{.tp_size = 4},
                           ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2},
                           ParallelismConfig{.dp_replicate_size = 4, .tp_size = 2},
                           ParallelismConfig{.dp_replicate_size = 2, .cp_size = 2, .tp_size = 2}}) {
    for (const auto& found : run_ranks(num_ranks(mesh), [&] { return trained({.mesh = mesh, .num_steps = 1}); })) {
      expect_equal(found.state, expected.state);
      for (std::size_t step = 0; step < expected.norms.size(); ++step)
        EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-12 * expected.norms[step]);
    }
  }
}

TEST(MeshTrainingTest, ShardsOutsideAndTensorParallelInsideEqualOneRank) {
  const auto expected = run_ranks(1, [] { return trained({.num_steps = 1}); }).front();
  for (const auto& mesh : {ParallelismConfig{.dp_shard_size = 2, .tp_size = 2},
                           ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}}) {
    const auto found =
        run_ranks(num_ranks(mesh), [&] { return trained({.mesh = mesh, .plugin = second_version(), .num_steps = 1}); });
    expect_equal(found.front().state, expected.state);
    for (const auto& run : found) {
      for (std::size_t step = 0; step < expected.norms.size(); ++step)
        EXPECT_NEAR(run.norms[step], expected.norms[step], 1e-12 * expected.norms[step]);
    }
  }
}

// The optimizer's moments are complete tensors in a checkpoint, too.
TEST(MeshTrainingTest, ASavedStateLoadsUnderAnyOtherLayout) {
  const TemporaryFolder folder;
  const std::vector<RunOptions> layouts{
      {.mesh = {}, .adam = true},
      {.mesh = {.tp_size = 2}, .adam = true},
      {.mesh = {.dp_replicate_size = 2, .tp_size = 4}, .adam = true},
      {.mesh = {.dp_shard_size = 2, .tp_size = 2}, .plugin = second_version(), .adam = true}};
  const auto run = [](const RunOptions& options) {
    return run_ranks(num_ranks(options.mesh), [&] { return trained(options); }).front();
  };
  auto uninterrupted = layouts.front();
  uninterrupted.num_steps = 4;
  const auto expected = run(uninterrupted);
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    auto first = layouts[from];
    first.save_to = folder.path("state" + std::to_string(from));
    run(first);
    for (std::size_t to = 0; to < layouts.size(); ++to) {
      SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
      auto second_half = layouts[to];
      second_half.load_from = first.save_to;
      second_half.first_step = 2;
      expect_equal(run(second_half).state, expected.state, 1e-12);
    }
  }
}

// Equally many ranks on another mesh continue no stream of the saved run, except for that of rank 0.
TEST(MeshTrainingTest, TensorParallelPeersDrawEqualNumbersAfterALoadFromAnotherLayout) {
  for (const auto& saving : {ParallelismConfig{.dp_replicate_size = 4}, ParallelismConfig{.dp_replicate_size = 2}}) {
    const TemporaryFolder folder;
    run_ranks(num_ranks(saving), [&] {
      set_seed(3, {.device_specific = true});
      trained({.mesh = saving, .save_to = folder.path("state"), .num_steps = 1});
    });
    const auto draws = run_ranks(4, [&] {
      set_seed(9, {.device_specific = true});
      trained({.mesh = {.dp_replicate_size = 2, .tp_size = 2}, .load_from = folder.path("state"), .num_steps = 1});
      return torch::rand({4});
    });
    EXPECT_TRUE(torch::equal(draws[0], draws[1]));
    EXPECT_TRUE(torch::equal(draws[2], draws[3]));
    EXPECT_FALSE(torch::equal(draws[0], draws[2]));
  }
}

TEST(MeshTrainingTest, TheSimulatorNamesAPeerWhoseCompleteParametersDiffer) {
  const auto message = message_of<Error>([] {
    run_ranks(4, [] {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}});
      auto net = std::make_shared<DividedNet>(accelerator.mesh());
      fill(*net);
      optim::SGD sgd(net->parameters(), {.lr = 1.0 / 16});
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 2; ++step) {  // in the first one, gradients are compared
        accelerator.backward(model(samples(0)).square().sum());
        if (accelerator.process_index() == 3 && step == 1) net->scale.mutable_grad() += 1;
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 3 differs from the rest, first in parameter scale"));
}

TEST(MeshTrainingTest, PeersThatDrewOtherNumbersBeginWithEqualParameters) {
  const auto scales = run_ranks(4, [] {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}});
    auto net = std::make_shared<DividedNet>(accelerator.mesh());
    {
      const torch::NoGradGuard no_grad;
      net->scale.fill_(accelerator.process_index());
    }
    auto model = accelerator.prepare(net);
    return net->scale.sum().item<double>();
  });
  for (const auto scale : scales) EXPECT_EQ(scale, 0.0);
}

// The message of the ConfigError of preparing a model, equal on every rank. A collective that one began would hang.
std::string refusal(const ParallelismConfig& mesh, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                    AcceleratorOptions options = {}) {
  options.parallelism_config = mesh;
  const auto messages = run_ranks(num_ranks(mesh), [&] {
    Accelerator accelerator(options);
    const auto model = make();
    return message_of<ConfigError>([&] { accelerator.prepare(model); });
  });
  for (const auto& message : messages) EXPECT_EQ(message, messages.front());
  return messages.front();
}

TEST(MeshTrainingTest, AModelOfAnotherMeshIsRefused) {
  const auto of_another_mesh = [] {
    return std::make_shared<DividedNet>(DeviceMesh(current_rank(), {.dp_replicate_size = 2, .tp_size = 2}));
  };
  EXPECT_THAT(refusal({.dp_replicate_size = 4}, of_another_mesh),
              HasSubstr("prepare: 'expansion.bias' and 2 other parameters are divided over 2 ranks, and "
                        "parallelism_config has tp_size 1; create the model with accelerator.mesh()"));
}

// Neither layers for tp nor experts for ep, and ranks that would shard it.
TEST(MeshTrainingTest, AllProblemsOfAModelOnAMeshAreOneErrorOnEveryRank) {
  const auto plain = [] { return std::make_shared<torch::nn::LinearImpl>(2, 2); };
  const auto undivided = [](const char* axis) {
    return HasSubstr(std::string("parallelism_config has ") + axis +
                     "_size 2, and no layer of the model is divided over these ranks");
  };
  EXPECT_THAT(refusal({.tp_size = 2}, plain), undivided("tp"));
  EXPECT_THAT(refusal({.ep_size = 2}, plain), undivided("ep"));
  EXPECT_THAT(refusal({.dp_shard_size = 2, .tp_size = 2, .ep_size = 2}, plain),
              AllOf(undivided("tp"), undivided("ep"), HasSubstr("dp_shard_size 2, and the model is not sharded")));
  EXPECT_THAT(refusal({.dp_shard_size = 2, .tp_size = 2, .ep_size = 2}, plain, {.fsdp_plugin = second_version()}),
              undivided("ep"));
}

// A model that is not trained computes the same on all ranks without harm. FSDP trains copies, as in Accelerate.
TEST(MeshTrainingTest, ModelsThatAreNotDividedAreAcceptedWhereAcceleratePermitsThem) {
  const ParallelismConfig mesh{.dp_shard_size = 2, .tp_size = 2};
  const auto warnings = run_ranks(4, [&] {
    std::vector<std::string> texts;
    current_rank().warn = [&](const std::string& text) { texts.push_back(text); };
    Accelerator accelerator({.parallelism_config = mesh, .fsdp_plugin = second_version()});
    accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(2, 2));
    return texts;
  });
  EXPECT_THAT(warnings[0], ::testing::ElementsAre(HasSubstr("no layer of the model is divided")));
  EXPECT_TRUE(warnings[1].empty());
  run_ranks(2, [] {
    Accelerator accelerator({.parallelism_config = ParallelismConfig{.tp_size = 2}});
    accelerator.prepare_model(std::make_shared<torch::nn::LinearImpl>(2, 2), {.evaluation_mode = true});
  });
}

// Muon orthogonalizes a matrix, of which each rank has a part; the order of the two calls does not matter.
TEST(MeshTrainingTest, OptimizersThatAreNotElementwiseAreRefused) {
  run_ranks(2, [] {
    for (const bool model_first : {true, false}) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.tp_size = 2}});
      auto net = std::make_shared<DividedNet>(accelerator.mesh());
      optim::Muon muon({net->expansion->weight}, {.lr = 0.1});
      const auto message = message_of<StateError>([&] {
        if (model_first) accelerator.prepare(net);
        const auto optimizer = accelerator.prepare(muon);
        accelerator.prepare(net);
      });
      EXPECT_THAT(message, HasSubstr("layers that are divided over ranks: Muon"));
    }
  });
}

TEST(MeshTrainingTest, SeedsPerDeviceAreEqualOnRanksThatComputeTheSame) {
  const auto draws = run_ranks(4, [] {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}});
    set_seed(3, {.device_specific = true});
    return torch::rand({4});
  });
  EXPECT_TRUE(torch::equal(draws[0], draws[1]));
  EXPECT_TRUE(torch::equal(draws[2], draws[3]));
  EXPECT_FALSE(torch::equal(draws[0], draws[2]));
}

TEST(MeshTrainingTest, UnsupportedCombinationsAreErrors) {
  run_ranks(4, [] {
    const auto problem = [](AcceleratorOptions options) {
      options.parallelism_config = ParallelismConfig{.dp_shard_size = 2, .tp_size = 2};
      return message_of<ConfigError>([&] {
        Accelerator accelerator(options);
        accelerator.prepare(std::make_shared<DividedNet>(accelerator.mesh()));
      });
    };
    EXPECT_THAT(problem({}), HasSubstr("dp_shard_size 2, and the model is not sharded"));
    EXPECT_THAT(problem({.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2,
                                                                       .state_dict_type = "SHARDED_STATE_DICT"}}),
                HasSubstr("use FULL_STATE_DICT"));
  });
}

}  // namespace
}  // namespace accel::testing::mesh_training_test
