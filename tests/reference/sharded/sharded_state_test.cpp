// Tests of the saved state of sharded models and their optimizers: copies on a mesh, any optimizer, several models.
#include <accel/accel.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/optim/optimizers/optimizers.hpp"
#include "tests/reference/sharded/sharded_training.hpp"
#include "tests/reference/sharded/sharding_options.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

// FSDP2 with sharded checkpoints on a mesh.
AcceleratorOptions on_mesh(ParallelismConfig mesh) {
  auto plugin = second_version();
  plugin.state_dict_type = "SHARDED_STATE_DICT";
  AcceleratorOptions options{.fsdp_plugin = plugin};
  options.parallelism_config = mesh;
  return options;
}

// With replicas, several ranks hold the same shard. It must be saved once, and a change after loading must reach
// all.
TEST(ShardedAcceleratorTest, CopiesOfAShardAreSavedOnceAndModifiedTogether) {
  for (const auto& mesh : {ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2},
                           ParallelismConfig{.dp_shard_size = 2, .tp_size = 2}}) {
    const TemporaryFolder folder;
    const auto states = run_ranks(4, [&] {
      Accelerator accelerator(on_mesh(mesh));
      auto net = make_net();
      optim::Adam adam(net->parameters(), {.lr = 0.1});
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const auto step = [&] {
        accelerator.backward(model(batch_of(accelerator.data_parallel_rank(), 1, 4, false)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      {
        const auto whole = accelerator.gathered_parameters(model, /*modifier_rank=*/0);
        if (accelerator.is_main_process()) {
          const torch::NoGradGuard no_grad;
          net->head->weight.fill_(3);
        }
      }
      accelerator.save_state(folder.path("state"));
      step();
      const auto whole_then = [&] {
        const auto whole = accelerator.gathered_parameters(model);
        return net->head->weight.detach().clone();
      }();
      accelerator.load_state(folder.path("state"));
      step();
      const auto whole = accelerator.gathered_parameters(model);
      EXPECT_TRUE(torch::equal(net->head->weight, whole_then));
      return net->head->weight.detach().clone();
    });
    if (mesh.dp_replicate_size == 2) {
      for (const auto& state : states) EXPECT_TRUE(torch::equal(state, states.front()));
    }
  }
}

// Two machines with two ranks: the machines hold equal shards. Pieces that two ranks had written would overlap.
TEST(ShardedAcceleratorTest, CopiesOfALocalShardAreSavedOnce) {
  const TemporaryFolder folder;
  run_ranks(Backend::kSim, 4, [&](RankContext& rank) {
    rank.local_world_size = 2;
    rank.local_rank = rank.rank % 2;
    auto plugin = wrapping_blocks("HYBRID_SHARD");
    plugin.state_dict_type = "LOCAL_STATE_DICT";
    Accelerator accelerator({.fsdp_plugin = plugin}, rank);
    auto net = make_net();
    optim::Adam adam(net->parameters(), {.lr = 0.1});
    auto [model, optimizer] = accelerator.prepare(net, adam);
    const auto step = [&] {
      accelerator.backward(model(batch_of(rank.rank, 1, 4, false)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    const auto weight = [&] {
      const auto whole = accelerator.gathered_parameters(model);
      return net->head->weight.detach().clone();
    };
    step();
    accelerator.save_state(folder.path("state"));
    step();
    const auto then = weight();
    accelerator.load_state(folder.path("state"));
    step();
    EXPECT_TRUE(torch::equal(weight(), then));
  });
}

// Each rank has a part of the sequence, so gradients are averaged over all of these ranks too.
TEST(ShardedAcceleratorTest, RanksThatShareASequenceAverageTheirGradients) {
  const auto trained = [](const AcceleratorOptions& options) {
    return run_ranks(2, [&] {
      Accelerator accelerator(options);
      auto net = make_net();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(accelerator.process_index(), step, 4, false)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = accelerator.gathered_parameters(model);
      return net->head->weight.detach().clone();
    });
  };
  const auto expected = trained(on_mesh({.dp_shard_size = 2})), found = trained(on_mesh({.cp_size = 2}));
  for (const auto& weight : found) EXPECT_TRUE(torch::equal(weight, expected.front()));
}

// The model has a parameter of one element. NAdam's state for it also contains a scalar that is not a shard, and
// the two must not be confused.
TEST(ShardedAcceleratorTest, TheStateOfAnyOptimizerIsRestored) {
  const auto resumes = [](const char* name, auto make) {
    for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
      const TemporaryFolder folder;
      run_ranks(2, [&] {
        Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = type}});
        torch::manual_seed(1);
        torch::nn::Linear net(8, 1);
        auto plain = make(net->parameters());
        auto model = accelerator.prepare(net);
        auto optimizer = accelerator.prepare(*plain);
        const auto step = [&] {
          accelerator.backward(model(torch::ones({2, 8})).square().mean());
          optimizer.step();
          optimizer.zero_grad();
          const auto whole = accelerator.gathered_parameters(model);
          return net->weight.detach().clone();
        };
        step();
        accelerator.save_state(folder.path("state"));
        const auto uncut = step();
        accelerator.load_state(folder.path("state"));
        EXPECT_TRUE(torch::equal(step(), uncut)) << name << " " << type;
      });
    }
  };
  resumes("nadam", [](auto parameters) { return std::make_unique<optim::NAdam>(parameters); });
  resumes("asgd", [](auto parameters) { return std::make_unique<optim::ASGD>(parameters); });
  resumes("adagrad", [](auto parameters) { return std::make_unique<optim::Adagrad>(parameters); });
  resumes("lion", [](auto parameters) { return std::make_unique<optim::Lion>(parameters); });
}

// Two models of the same class have equal parameter names. Their states must not overwrite each other.
TEST(ShardedAcceleratorTest, ModelsWhoseParametersHaveEqualNamesKeepTheirStates) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const TemporaryFolder folder;
    run_ranks(2, [&] {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = type}});
      torch::manual_seed(1);
      torch::nn::Linear first(4, 3), second(4, 3);
      auto parameters = first->parameters();
      for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
      optim::Adam adam(parameters, {.lr = 0.1});
      auto [a, b, optimizer] = accelerator.prepare(first, second, adam);
      const auto step = [&] {
        accelerator.backward((a(torch::ones({2, 4})).square() + 3 * b(torch::full({2, 4}, 2.0)).square()).mean());
        optimizer.step();
        optimizer.zero_grad();
        const auto whole_a = accelerator.gathered_parameters(a), whole_b = accelerator.gathered_parameters(b);
        return torch::cat({first->weight.detach(), second->weight.detach()});
      };
      step();
      accelerator.save_state(folder.path("state"));
      const auto uncut = step();
      accelerator.load_state(folder.path("state"));
      EXPECT_TRUE(torch::equal(step(), uncut)) << type;
    });
  }
}

// LBFGS computes dot products over all parameters, which a rank cannot do on its shards alone.
TEST(ShardedAcceleratorTest, LbfgsIsAnError) {
  run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto net = make_net();
    torch::optim::LBFGS lbfgs(net->parameters());
    auto model = accelerator.prepare(net);
    EXPECT_THROW(accelerator.prepare(lbfgs), StateError);
  });
}

// A part of a matrix has other row sums, another norm and, flat, no rows at all.
TEST(ShardedAcceleratorTest, OptimizersThatNeedCompleteParametersAreErrors) {
  run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto net = make_net();
    optim::Adafactor adafactor(net->parameters());
    optim::SparseAdam sparse_adam(net->parameters());
    optim::Muon muon({net->head->weight});
    auto model = accelerator.prepare(net);
    EXPECT_THAT(message_of<StateError>([&] { accelerator.prepare(adafactor); }),
                HasSubstr("Adafactor does not support sharded models, because its row and column statistics"));
    EXPECT_THAT(message_of<StateError>([&] { accelerator.prepare(sparse_adam); }),
                HasSubstr("SparseAdam does not support sharded models, because gradients of shards are dense"));
    EXPECT_THAT(message_of<StateError>([&] { accelerator.prepare(muon); }),
                HasSubstr("Muon does not support sharded models, because its Newton-Schulz iterations"));
  });
}

// Lion works element by element, so that shards are stepped like complete parameters.
TEST(ShardedAcceleratorTest, LionOnShardsStepsLikeLionOnAllParameters) {
  const auto trained = [](const AcceleratorOptions& options) {
    return run_ranks(2, [&] {
      Accelerator accelerator(options);
      auto net = make_net();
      optim::Lion lion(net->parameters(), {.lr = 0.05});
      auto [model, optimizer] = accelerator.prepare(net, lion);
      for (int step = 0; step < 4; ++step) {
        accelerator.backward(model(batch_of(accelerator.process_index(), step, 4, false)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      return accelerator.get_state_dict(model);
    });
  };
  const auto expected = trained({.ddp_kwargs = {.find_unused_parameters = true}});
  const auto found = trained({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
  EXPECT_GT(expected.front().size(), 0U);
  EXPECT_EQ(expected.front().size(), found.front().size());
  expect_equal(expected.front(), found.front());
}

// If only rank 0 loads the model, the others must also get its buffers.
TEST(ShardedAcceleratorTest, SynchronizedModulesHaveTheBuffersOfRankZero) {
  for (const bool synchronizes : {false, true}) {
    run_ranks(2, [&] {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.sync_module_states = synchronizes}});
      auto net = make_net();
      for (auto& buffer : net->buffers()) buffer.fill_(accelerator.process_index() + 1);
      auto model = accelerator.prepare(net);
      for (const auto& buffer : net->buffers())
        EXPECT_EQ(buffer.item<float>(), synchronizes ? 1 : accelerator.process_index() + 1);
    });
  }
}

}  // namespace
}  // namespace accel::testing
