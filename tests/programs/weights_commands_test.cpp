// accel merge-weights and estimate-memory, as a user calls them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/checkpoint/weights_files.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::weights_commands_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class WeightsCommandsTest : public ::testing::Test {
 protected:
  /// Saves a checkpoint of a small transformer that is sharded over `ranks` and returns its folder.
  std::string checkpoint(const std::string& state_dict_type, int ranks) {
    const auto project = folder_.path(state_dict_type + std::to_string(ranks));
    const auto run = run_command({bin("sim-run"), "--ranks", std::to_string(ranks), "--quiet", "--max-steps", "2",
                                  "--project-dir", project, "--save-every", "2", "--set",
                                  "accelerator.fsdp_plugin.state_dict_type=" + state_dict_type,
                                  source("tests/programs/experiments/gpt_fsdp.yaml")});
    EXPECT_EQ(run.exit_code, 0) << run.error;
    return project + "/checkpoints/checkpoint_0";
  }

  TemporaryFolder folder_;
};

// The same training saves its state once in full and once in shards of either form, so the merged file has a reference.
TEST_F(WeightsCommandsTest, MergedWeightsEqualAFullCheckpoint) {
  const auto whole = read_weights(checkpoint("FULL_STATE_DICT", 3) + "/pytorch_model_fsdp.bin");
  const auto sharded = checkpoint("SHARDED_STATE_DICT", 3), local = checkpoint("LOCAL_STATE_DICT", 3);
  for (const auto& [saved, flag] : {std::pair{sharded, ""}, {sharded, "--unsafe_serialization"}, {local, ""}}) {
    const auto output = saved + "_merged" + flag;
    std::vector<std::string> command{bin("accel"), "merge-weights", saved, output};
    const bool is_unsafe = *flag != '\0';
    if (is_unsafe) command.emplace_back(flag);
    const auto run = run_command(command);
    ASSERT_EQ(run.exit_code, 0) << run.error;
    EXPECT_TRUE(std::filesystem::exists(output + (is_unsafe ? "/pytorch_model.bin" : "/model.safetensors")));
    const auto merged = read_weights(output);
    ASSERT_EQ(merged.size(), whole.size());
    for (const auto& [name, weight] : whole) EXPECT_TRUE(at::equal(merged.at(name).load(), weight.load())) << name;
  }
}

// There is nothing to merge, and the message says what is expected.
TEST_F(WeightsCommandsTest, AnUnshardedCheckpointIsAnError) {
  const auto run =
      run_command({bin("accel"), "merge-weights", checkpoint("FULL_STATE_DICT", 2), folder_.path("merged")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(
      run.error,
      HasSubstr(
          "neither .metadata nor rank0.safetensors; expected a checkpoint that was saved with SHARDED_STATE_DICT"));
  const auto sharded = checkpoint("SHARDED_STATE_DICT", 3);
  std::filesystem::remove(sharded + "/pytorch_model_fsdp_0/__1_0.distcp");
  const auto damaged = run_command({bin("accel"), "merge-weights", sharded, folder_.path("merged")});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.error, HasSubstr("__1_0.distcp is missing"));
  // A failed merge must leave no folder that looks like a result.
  EXPECT_FALSE(std::filesystem::exists(folder_.path("merged")));
}

TEST_F(WeightsCommandsTest, MemoryEqualsAcceleratesTable) {
  PosixFiles files;
  write_weights(
      files, folder_.path("model"),
      {{"first.weight", at::ones({100, 10})}, {"first.bias", at::ones({100})}, {"last.weight", at::ones({7, 100})}});
  const auto run = run_command({bin("accel"), "estimate-memory", folder_.path("model"), "--json", "--ranks", "1,4",
                                "--sharding", "FULL_SHARD", "--wrap", "first|last"});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto answer = Json::parse(run.output);
  const std::int64_t numel = 1000 + 100 + 700;
  EXPECT_EQ(answer["dtypes"][0], (Json{{"dtype", "float32"},
                                       {"largest_layer_bytes", 4400},
                                       {"total_bytes", 4 * numel},
                                       {"training_with_adam_bytes", 16 * numel}}));
  EXPECT_EQ(answer["dtypes"][1], (Json{{"dtype", "float16"},
                                       {"largest_layer_bytes", 2200},
                                       {"total_bytes", 2 * numel},
                                       {"training_with_adam_bytes", 8 * numel}}));
  // Weights in int4 are not trained with Adam, so the table has no number.
  EXPECT_EQ(answer["dtypes"][3]["training_with_adam_bytes"], Json());
  // On GPUs a unit is gathered while the one before it computes, so both are full at the same time.
  EXPECT_EQ(answer["sharded"][1], (Json{{"ranks", 4},
                                        {"parameters", numel},
                                        {"gradients", numel},
                                        {"optimizer", 2 * numel},
                                        {"gathered", 4 * numel}}));
  const auto table = run_command({bin("accel"), "estimate-memory", folder_.path("model")});
  EXPECT_THAT(table.output, AllOf(HasSubstr("training with Adam"), HasSubstr("28.12 KB"), HasSubstr("N/A")));
  const auto wrong =
      run_command({bin("accel"), "estimate-memory", folder_.path("model"), "--dtypes", "float8", "--ranks", "4"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.error, AllOf(HasSubstr("--dtypes: unknown dtype 'float8'"),
                                 HasSubstr("--ranks and --sharding: only one was given")));
}

}  // namespace
}  // namespace accel::testing::weights_commands_test
