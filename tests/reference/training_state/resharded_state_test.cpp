// Tests of loading a checkpoint on another number of ranks, or sharded in another way, than it was saved. The
// loaded values are compared bit for bit.
#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "reference/checkpoint/manifest.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/training_state/state_files.hpp"
#include "tests/reference/training_state/saved_training.hpp"

namespace accel::testing::saved_training {
namespace {

using ::testing::HasSubstr;

// The loaded bits do not depend on how many ranks saved or load. Of the random states, rank 0 gets its own; other
// ranks keep theirs.
TEST_F(SaveStateTest, ACheckpointLoadsOnAnotherNumberOfRanks) {
  for (const auto& options : {ddp(), sharded_as("FULL_STATE_DICT"), sharded_as("SHARDED_STATE_DICT")}) {
    std::string saved;
    run_ranks(3, [&] {
      Training training(options);
      training.train(2);
      training.accelerator.save_state(path_);
      auto state = training.state();
      if (training.accelerator.is_main_process()) saved = state;
    });
    for (const int ranks : {1, 2, 3, 5}) {
      std::mutex mutex;
      std::set<std::int64_t> draws;
      run_ranks(ranks, [&] {
        Training training(options, /*seed=*/9);
        training.accelerator.load_state(path_);
        auto state = training.state();
        if (training.accelerator.is_main_process()) {
          EXPECT_EQ(state, saved) << ranks << " ranks";
        }
        const std::lock_guard lock(mutex);
        if (ranks != 3) draws.insert(draw_int64(default_generator()));
      });
      if (ranks != 3) {
        EXPECT_EQ(draws.size(), static_cast<std::size_t>(ranks));
      }
    }
  }
}

// Two steps, a checkpoint and three more steps must equal five steps.
TEST_F(SaveStateTest, AShardedTrainingContinuesWithTheSameBits) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"}) {
    const auto uncut = run_ranks(3, [&] {
      Training training(sharded_as(type));
      training.train(5);
      return training.state();
    });
    run_ranks(3, [&] {
      Training training(sharded_as(type));
      training.train(2);
      training.accelerator.save_state(path_);
    });
    const auto resumed = run_ranks(3, [&] {
      Training training(sharded_as(type), /*seed=*/9);
      training.accelerator.load_state(path_);
      training.train(3);
      return training.state();
    });
    EXPECT_EQ(resumed, uncut) << type;
  }
}

AcceleratorOptions accumulating(AcceleratorOptions options) {
  options.gradient_accumulation_steps = 4;
  return options;
}

// Four of six micro-batches make a window, so that the load continues after the first four.
TEST_F(SaveStateTest, AnOpenWindowIsDroppedAndRepeatedOnOtherRanks) {
  for (const auto& options : {ddp(), sharded_as("FULL_STATE_DICT"), sharded_as("SHARDED_STATE_DICT")}) {
    const auto after_load = [&](int num_micro_batches, const LoadStateOptions& load, bool has_own_window) {
      run_ranks(3, [&] {
        Training training(accumulating(options));
        training.train(num_micro_batches);
        training.accelerator.save_state(path_);
      });
      return run_ranks(2, [&] {
        Training training(accumulating(options), /*seed=*/9);
        if (has_own_window) training.train(1);  // its gradients are dropped too
        training.accelerator.load_state(path_, load);
        training.train(5);
        return training.state();
      });
    };
    const auto expected = after_load(4, {}, /*has_own_window=*/false).front();
    EXPECT_EQ(after_load(6, {.inside_window = "drop"}, /*has_own_window=*/true).front(), expected);
    EXPECT_EQ(after_load(4, {}, /*has_own_window=*/true).front(), expected);
  }
}

// An epoch that other ranks had begun continues at any position.
TEST(StepBackTest, StepsCountFromThePosition) {
  LoaderState state{.source = "samples"};
  state.pass.emplace().num_read = 26;
  EXPECT_EQ(step_back(state, 2, 6), "");
  EXPECT_EQ(state.pass->num_read, 14);
  EXPECT_EQ(step_back(state, 3, 6), "it began in the epoch before");
}

TEST_F(SaveStateTest, AnOpenWindowIsNotDroppedUnasked) {
  const auto save = [&](const std::function<void(Training&)>& train) {
    run_ranks(3, [&] {
      Training training(accumulating(ddp()));
      train(training);
    });
  };
  const auto problem = [&](const LoadStateOptions& options) {
    return problem_on(2, [&] { Training(accumulating(ddp())).accelerator.load_state(path_, options); });
  };
  save([&](Training& training) {
    training.train(6);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(problem({}),
              HasSubstr("3 ranks saved it inside an accumulation window, with unreduced gradients per "
                        "rank, which 2 ranks cannot load; resume with the same ranks and parallelism_config, "
                        "or repeat the window's micro-batches with {.inside_window = \"drop\"}"));
  run_ranks(2, [&] {
    Training training(accumulating(ddp()));
    EXPECT_THAT(message_of<ArgumentError>([&] { training.accelerator.load_state(path_, {.inside_window = "repeat"}); }),
                HasSubstr("inside_window: expected keep or drop, got 'repeat'"));
  });
  // A second loop that was left: either may have been read in the window.
  save([&](Training& training) {
    auto others = training.accelerator.prepare(DataLoader(TensorDataset(torch::zeros({6})), {.batch_size = 1}));
    for (auto& batch : others) {
      static_cast<void>(batch);
      break;
    }
    training.train(6);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(problem({.inside_window = "drop"}), HasSubstr("while 2 loaders were being read"));
}

// Equally many ranks, of which each has other samples: rank 1 is a second reader, or has the second half of a sequence.
TEST_F(SaveStateTest, AnOpenWindowOfAnotherMeshIsDroppedOrRefused) {
  const auto on_mesh = [](const ParallelismConfig& mesh) {
    auto options = accumulating(ddp());
    options.parallelism_config = mesh;
    return options;
  };
  const auto problem = [&](const ParallelismConfig& mesh, const LoadStateOptions& options) {
    return problem_on(2, [&] { Training(on_mesh(mesh)).accelerator.load_state(path_, options); });
  };
  run_ranks(2, [&] {
    Training training(on_mesh({.dp_replicate_size = 2}));
    training.train(6);
    training.accelerator.save_state(path_);
  });
  EXPECT_THAT(
      problem({.cp_size = 2}, {}),
      HasSubstr("2 ranks (dp 2) saved it inside an accumulation window, with unreduced gradients per rank, which "
                "2 ranks (dp 1 x cp 2) cannot load; resume with the same ranks and parallelism_config"));
  EXPECT_EQ(problem({.cp_size = 2}, {.inside_window = "drop"}), "");
  EXPECT_EQ(problem({.dp_replicate_size = 2}, {}), "");
  // As an earlier version saved it. The manifest has the checksums of the files.
  std::filesystem::remove(path_ + "/" + checkpoint::kManifestName);
  for (int rank = 0; rank < 2; ++rank) {
    const auto file = path_ + "/" + checkpoint::file_of_random_states(rank);
    auto states = read_torch_file(file).as<Value::Dict>();
    auto ours = states.at("accel").as<Value::Dict>();
    EXPECT_EQ(ours.erase("mesh"), 1U);
    states["accel"] = std::move(ours);
    PosixFiles files;
    write_torch_file(files, file, states);
  }
  EXPECT_EQ(problem({.cp_size = 2}, {.allow_missing_manifest = true}), "");
}

// With `save_on_each_node`, every machine writes a complete checkpoint. For shards this cannot work, as no machine
// has all of them.
TEST_F(SaveStateTest, SavingOnEachNodeWorksOrIsAnError) {
  run_ranks(2, [&] {
    auto options = ddp();
    options.project_config = {.save_on_each_node = true};
    Training(options).accelerator.save_state(path_);
    auto sharded = sharded_as("SHARDED_STATE_DICT");
    sharded.project_config = {.save_on_each_node = true};
    Training training(sharded);
    EXPECT_THAT(message_of<ArgumentError>([&] { training.accelerator.save_state(path_); }),
                HasSubstr("no machine has the complete model"));
  });
  EXPECT_TRUE(checkpoint::read_manifest(path_)->lists("model.safetensors"));
}

// These files contain the shards as they are. The message names the option that would allow it.
TEST_F(SaveStateTest, LocalShardsLoadOnlyOnTheSameNumberOfRanks) {
  run_ranks(3, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.save_state(path_); });
  EXPECT_THAT(problem_on(2, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.load_state(path_); }),
              HasSubstr("saved by 3 ranks, and this run has 2 ranks; LOCAL_STATE_DICT"));
}

// A model may be trained on many ranks and evaluated on one.
TEST_F(SaveStateTest, ShardedStateLoadsUnshardedAndViceVersa) {
  std::string saved;
  run_ranks(3, [&] {
    Training training(sharded_as("SHARDED_STATE_DICT"));
    training.train(2);
    training.accelerator.save_state(path_);
    auto state = training.state();
    if (training.accelerator.is_main_process()) saved = state;
  });
  run_ranks(2, [&] {
    Training whole(ddp(), 9);
    whole.accelerator.load_state(path_);
    whole.accelerator.save_state(path_);
  });
  run_ranks(4, [&] {
    Training training(sharded_as("FULL_STATE_DICT"), 9);
    training.accelerator.load_state(path_);
    auto state = training.state();
    if (training.accelerator.is_main_process()) {
      EXPECT_EQ(state, saved);
    }
  });
}

TEST_F(SaveStateTest, TheOptimizersStateOfAShardedRunLoadsInAnUnshardedOne) {
  for (const auto* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const auto save_as = [](const char* state_dict_type, const std::string& path) {
      run_ranks(3, [&] {
        Training training(sharded_as(state_dict_type));
        training.train(2);
        training.accelerator.save_state(path);
      });
    };
    save_as(type, path_);
    save_as("FULL_STATE_DICT", folder_.path("full"));
    const auto saved = read_torch_file(folder_.path("full/optimizer.bin")).at("state");
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&] {
        Training whole(ddp(), 9);
        whole.accelerator.load_state(path_);
        const auto loaded = optim::state_dict(whole.adam).at("state");
        NamedTensors parameters;
        for (const auto& item : whole.net->named_parameters()) parameters.emplace_back(item.key(), item.value());
        parameters = unique_tensors(std::move(parameters));
        ASSERT_EQ(loaded.as<Value::Dict>().size(), saved.as<Value::Dict>().size()) << type;
        for (std::size_t index = 0; index < parameters.size(); ++index) {
          const auto& name = parameters[index].first;
          if (!saved.contains(name)) continue;  // it never had a gradient
          for (const auto* entry : {"exp_avg", "exp_avg_sq", "step"}) {
            EXPECT_TRUE(loaded.at(std::to_string(index))
                            .at(entry)
                            .as<at::Tensor>()
                            .equal(saved.at(name).at(entry).as<at::Tensor>()))
                << type << " " << name << " " << entry;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace accel::testing::saved_training
