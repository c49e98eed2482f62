#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "reference/checkpoint/manifest.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/reference/training_state/saved_training.hpp"

namespace accel::testing::saved_training {
namespace {

using ::testing::HasSubstr;

// The bits of what is loaded do not depend on how many ranks saved or load; of random numbers rank 0's stay, others are
// their own.
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

TEST_F(SaveStateTest, AShardedTrainingGoesOnWithTheSameBits) {
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

TEST_F(SaveStateTest, EveryMachineHasWhatItNeedsOrSaysThatItCannot) {
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

TEST_F(SaveStateTest, LocalShardsLoadOnAsManyRanksOnly) {
  run_ranks(3, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.save_state(path_); });
  EXPECT_THAT(problem_on(2, [&] { Training(sharded_as("LOCAL_STATE_DICT")).accelerator.load_state(path_); }),
              HasSubstr("saved by 3 ranks, and the world size is 2; LOCAL_STATE_DICT"));
}

TEST_F(SaveStateTest, WhatIsShardedLoadsWholeAndTheOtherWayRound) {
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
          if (!saved.contains(name)) continue;  // it has had no gradient
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
