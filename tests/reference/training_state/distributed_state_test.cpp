// Checkpoints of SHARDED_STATE_DICT in PyTorch's distributed format, and in this library's own earlier form.
#include <gmock/gmock.h>

#include <filesystem>

#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/manifest.hpp"
#include "reference/training_state/distributed_state.hpp"
#include "tests/reference/training_state/saved_training.hpp"

namespace accel::testing::saved_training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  PosixFiles files;
  return files.list(folder);
}

class DistributedStateTest : public SaveStateTest {
 protected:
  /// Trains on three ranks, saves, and returns the full state.
  std::string saved_as(const std::string& type, SaveStateOptions options = {}) {
    std::string saved;
    run_ranks(3, [&] {
      Training training(sharded_as(type));
      training.train(2);
      training.accelerator.save_state(path_, options);
      // An asynchronous save is not affected by what follows.
      auto state = training.state();
      if (training.accelerator.is_main_process()) saved = state;
      if (options.async) {
        training.train(1);
        training.accelerator.wait_for_everyone();
        training.accelerator.finish_saving();
      }
    });
    return saved;
  }
  std::string loaded_on(int ranks, const std::string& type) {
    return run_ranks(ranks,
                     [&] {
                       Training training(sharded_as(type), /*seed=*/9);
                       training.accelerator.load_state(path_);
                       return training.state();
                     })
        .front();
  }
};

TEST_F(DistributedStateTest, TheFilesHaveAcceleratesNames) {
  static_cast<void>(saved_as("SHARDED_STATE_DICT"));
  for (const auto* folder : {"pytorch_model_fsdp_0", "optimizer_0"})
    EXPECT_THAT(names_in(path_ + "/" + folder),
                ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"));
  EXPECT_FALSE(fs::exists(path_ + "/optimizer.bin"));
  EXPECT_TRUE(checkpoint::read_manifest(path_)->lists("optimizer_0/.metadata"));
}

// The same training, saved in full, has the reference values.
TEST_F(DistributedStateTest, ItContainsWhatAFullStateDictContains) {
  static_cast<void>(saved_as("FULL_STATE_DICT"));
  const auto weights = read_weights(path_ + "/pytorch_model_fsdp.bin");
  const auto optimizer = read_torch_file(path_ + "/optimizer.bin");
  for (const bool async : {false, true}) {
    static_cast<void>(saved_as("SHARDED_STATE_DICT", {.async = async}));
    const auto tensors = read_distributed_checkpoint(path_ + "/pytorch_model_fsdp_0");
    EXPECT_EQ(tensors.size(), weights.size());
    for (const auto& [name, weight] : weights) EXPECT_TRUE(tensors.at("model." + name).equal(weight.load())) << name;
    EXPECT_EQ(DistributedCheckpoint(path_ + "/optimizer_0").state_dict().at("optimizer"), optimizer);
  }
}

// Two layers with one weight, which Python's strict load expects under both names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : first(register_module("first", torch::nn::Linear(3, 3))) {
    last = register_parameter("last", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(first(x), last); }
  torch::nn::Linear first;
  at::Tensor last;
};
TORCH_MODULE(Tied);

TEST_F(DistributedStateTest, ASharedParameterHasAllOfItsNames) {
  run_ranks(2, [&] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = "SHARDED_STATE_DICT"}});
    set_seed(3);
    Tied tied;
    auto model = accelerator.prepare(tied);
    accelerator.save_state(path_);
    const auto weights = accelerator.get_state_dict(model);
    if (!accelerator.is_main_process()) return;
    const auto tensors = read_distributed_checkpoint(path_ + "/pytorch_model_fsdp_0");
    EXPECT_EQ(tensors.size(), weights.size());
    EXPECT_TRUE(tensors.at("model.first.weight").equal(tensors.at("model.last")));
  });
}

// Folders of LOCAL_STATE_DICT have the form that SHARDED_STATE_DICT had before.
TEST_F(DistributedStateTest, TheEarlierFormLoadsOnAnyNumberOfRanks) {
  const auto saved = saved_as("LOCAL_STATE_DICT");
  EXPECT_TRUE(fs::exists(path_ + "/optimizer.bin"));
  EXPECT_THAT(names_in(path_ + "/optimizer_0"),
              ElementsAre("rank0.safetensors", "rank1.safetensors", "rank2.safetensors"));
  for (const int ranks : {1, 2}) {
    auto loaded = loaded_on(ranks, "SHARDED_STATE_DICT");
    EXPECT_EQ(loaded, saved) << ranks;
  }
}

// load_state prefers these folders to the weights and optimizer.bin of the new save.
TEST_F(DistributedStateTest, FoldersThatPythonSavedAreReplaced) {
  static_cast<void>(saved_as("SHARDED_STATE_DICT"));
  fs::remove(path_ + "/" + checkpoint::kManifestName);
  static_cast<void>(saved_as("FULL_STATE_DICT"));
  for (const auto* folder : {"pytorch_model_fsdp_0", "optimizer_0"}) EXPECT_FALSE(fs::exists(path_ + "/" + folder));
}

// A rank that threw alone would leave the others waiting.
TEST_F(DistributedStateTest, AnItemThatOneRankCannotWriteIsAnErrorOnEveryRank) {
  const auto problem = problem_on(2, [&] {
    const auto value = current_rank().rank == 1 ? at::ones({2, 2}).to_sparse() : at::ones({2, 2});
    std::vector<checkpoint::StateFile> files;
    checkpoint::add_distributed_optimizer(files, 0, Value::Dict{{"scale", value}}, {}, current_rank());
  });
  EXPECT_THAT(problem, HasSubstr("optimizer_0: not saved: rank 1: "));
}

TEST_F(DistributedStateTest, ADamagedFolderIsAnErrorOnEveryRank) {
  static_cast<void>(saved_as("SHARDED_STATE_DICT"));
  fs::remove(path_ + "/" + checkpoint::kManifestName);  // as in a folder that Python wrote
  fs::remove(path_ + "/optimizer_0/__1_0.distcp");
  const auto problem = problem_on(2, [&] {
    Training(sharded_as("SHARDED_STATE_DICT")).accelerator.load_state(path_, {.allow_missing_manifest = true});
  });
  EXPECT_THAT(problem, HasSubstr("optimizer_0: __1_0.distcp is missing; copy all files of one save"));
}

TEST_F(DistributedStateTest, AStateOfOtherParametersIsAnError) {
  static_cast<void>(saved_as("SHARDED_STATE_DICT"));
  fs::remove(path_ + "/" + checkpoint::kManifestName);
  PosixFiles files;
  auto state = DistributedCheckpoint(path_ + "/optimizer_0").state_dict().at("optimizer").as<Value::Dict>();
  auto entries = state.at("state").as<Value::Dict>();
  entries["other.weight"] = Value::Dict{{"exp_avg", at::ones({2})}};
  state["state"] = entries;
  write_distributed_checkpoint(files, path_ + "/optimizer_0", Value::Dict{{"optimizer", state}});
  EXPECT_THAT(
      problem_on(
          2,
          [&] {
            Training(sharded_as("SHARDED_STATE_DICT")).accelerator.load_state(path_, {.allow_missing_manifest = true});
          }),
      HasSubstr("the optimizer's state has entries for 'other.weight'"));
}

}  // namespace
}  // namespace accel::testing::saved_training
