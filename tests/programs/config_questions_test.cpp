// The questions of `accel config` about meshes, answered by lines on standard input.
#include <gmock/gmock.h>

#include "reference/config/launch/launch_config.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::config_questions_test {
namespace {

using ::testing::HasSubstr;

class ConfigQuestionsTest : public ::testing::Test {
 protected:
  /// The configuration that the answers give, and what was printed.
  std::pair<LaunchConfig, std::string> answered(const std::string& answers) {
    const auto file = folder_.path("config.yaml");
    const auto run = run_command(
        {"bash", "-c", bin("accel") + " config --config_file " + file + " < " + folder_.write("answers", answers)},
        {.environment = {{"CUDA_VISIBLE_DEVICES", ""}}});
    EXPECT_EQ(run.exit_code, 0) << run.error << run.output;
    return {read_launch_config(file), run.output};
  }

  TemporaryFolder folder_;
};

// Sequence parallelism is a question only with tensor parallelism. Pipelines are unsupported, so 1 is the only answer.
TEST_F(ConfigQuestionsTest, MegatronsDegreesAreAskedFor) {
  const auto [config, output] = answered(
      "0\n2\n\n\n\n\nyes\n"   // machine, type, machines, debug, deepspeed, fsdp, megatron
      "2\n\n2\n1\n\nno\n0\n"  // tensor, sequence, pipeline twice, recompute, optimizer, clipping
      "4\n\n\n\n");           // processes, devices, affinity, precision
  EXPECT_THAT(output, HasSubstr("Please enter 1; pipeline parallelism is unsupported."));
  EXPECT_EQ(config.distributed_type, "MEGATRON_LM");
  EXPECT_EQ(config.num_processes, 4);
  EXPECT_EQ(config.megatron_lm_config, (ConfigSection{{"megatron_lm_tp_degree", std::int64_t{2}},
                                                      {"megatron_lm_sequence_parallelism", true},
                                                      {"megatron_lm_pp_degree", std::int64_t{1}},
                                                      {"megatron_lm_recompute_activations", true},
                                                      {"megatron_lm_use_distributed_optimizer", false},
                                                      {"megatron_lm_gradient_clipping", 0.0}}));
}

// The strategy is a question only with context parallelism.
TEST_F(ConfigQuestionsTest, Fsdp2IsAskedForTheMesh) {
  const std::string fsdp = "0\n1\n\n\n\n\nyes\n1\n\n\n2\n\n\n\n";  // up to checkpointing
  const auto mesh = answered(fsdp + "yes\n\n2\n\n2\n1\n4\n\n").first;
  EXPECT_EQ(mesh.num_processes, 4);
  EXPECT_EQ(mesh.parallelism_config, (ConfigSection{{"parallelism_config_dp_replicate_size", std::int64_t{1}},
                                                    {"parallelism_config_dp_shard_size", std::int64_t{2}},
                                                    {"parallelism_config_tp_size", std::int64_t{1}},
                                                    {"parallelism_config_cp_size", std::int64_t{2}},
                                                    {"parallelism_config_cp_comm_strategy", "alltoall"}}));
  EXPECT_EQ(answered(fsdp + "yes\n\n4\n\n\n4\n\n").first.parallelism_config.size(), 4U);
  EXPECT_TRUE(answered(fsdp + "no\n4\n\n").first.parallelism_config.empty());
}

}  // namespace
}  // namespace accel::testing::config_questions_test
