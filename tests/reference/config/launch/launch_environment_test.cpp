// A launch configuration becomes environment variables, and the plugins of the launched program read them. Both
// halves are tested together, because a variable that one writes and the other does not read is lost silently.
#include <gmock/gmock.h>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_config.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "tests/support/clean_environment.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

// Resolves the program's plugins from a configuration, through the environment.
class LaunchEnvironmentTest : public ::testing::Test {
 protected:
  template <typename Plugin>
  ResolvedPlugin resolved(const LaunchConfig& config) {
    environment_.clear();
    environment_.set(environment_of(config));
    std::vector<std::string> problems;
    auto plugin = resolve(Plugin(), config.mixed_precision.value_or("no"), problems);
    EXPECT_THAT(problems, IsEmpty());
    return plugin;
  }
  ShardingOptions sharding(ConfigSection fsdp) {
    fsdp.emplace("fsdp_auto_wrap_policy", "NO_WRAP");
    return resolved<FullyShardedDataParallelPlugin>({.distributed_type = "FSDP", .fsdp_config = std::move(fsdp)})
        .sharding.value();
  }
  CleanEnvironment environment_{{"FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_", "MEGATRON_LM_"}};
};

// Sharding needs several processes, so the section of FSDP must not reach the program.
TEST_F(LaunchEnvironmentTest, AConfigurationForOneProcessSetsOnlyPrecisionAndDevice) {
  const auto variables = environment_of({.mixed_precision = "bf16",
                                         .use_cpu = true,
                                         .gpu_ids = "all",
                                         .fsdp_config = {{"fsdp_version", std::int64_t{2}}}});
  EXPECT_THAT(variables, IsSupersetOf({Pair("ACCELERATE_MIXED_PRECISION", "bf16"), Pair("ACCELERATE_USE_CPU", "True"),
                                       Pair("ACCELERATE_DYNAMO_BACKEND", "NO")}));
  EXPECT_EQ(variables.size(), 7u);
  EXPECT_THAT(environment_of({.debug = true, .gpu_ids = "1,3", .enable_cpu_affinity = true}),
              IsSupersetOf({Pair("CUDA_VISIBLE_DEVICES", "1,3"), Pair("ACCELERATE_DEBUG_MODE", "true"),
                            Pair("ACCELERATE_CPU_AFFINITY", "1"), Pair("ACCELERATE_MIXED_PRECISION", "no")}));
}

// The path is long (file, variables, program, plugin), and each step has its own names.
TEST_F(LaunchEnvironmentTest, FsdpsOptionsReachThePlugin) {
  const auto options = sharding({{"fsdp_version", std::int64_t{2}},
                                 {"fsdp_reshard_after_forward", false},
                                 {"fsdp_offload_params", true},
                                 {"fsdp_activation_checkpointing", true},
                                 {"fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                                 {"fsdp_transformer_layer_cls_to_wrap", "Block,Head"},
                                 {"fsdp_state_dict_type", "SHARDED_STATE_DICT"}});
  EXPECT_FALSE(options.reshard_after_forward);
  EXPECT_TRUE(options.activation_checkpointing);
  EXPECT_EQ(options.offload_parameters, OffloadDevice::kCpu);
  EXPECT_THAT(options.wrap.classes, ElementsAre("Block", "Head"));
  EXPECT_EQ(options.state_dict_type, "SHARDED_STATE_DICT");
  EXPECT_TRUE(fsdp_requested());
}

// Accelerate writes the strategy that its questionnaire asks for to a key that it does not read.
TEST_F(LaunchEnvironmentTest, TheStrategyOfVersion1IsTheChosenOne) {
  EXPECT_FALSE(sharding({{"fsdp_version", std::int64_t{1}}, {"fsdp_reshard_after_forward", "SHARD_GRAD_OP"}})
                   .reshard_after_forward);
  EXPECT_TRUE(sharding({{"fsdp_reshard_after_forward", "HYBRID_SHARD"}}).hybrid);
  EXPECT_TRUE(sharding({{"fsdp_reshard_after_forward", "SHARD_GRAD_OP"}, {"fsdp_sharding_strategy", "FULL_SHARD"}})
                  .reshard_after_forward);
  EXPECT_TRUE(sharding({}).reshard_after_forward);
}

// The same for DeepSpeed.
TEST_F(LaunchEnvironmentTest, DeepSpeedsOptionsReachThePlugin) {
  const auto plugin = resolved<DeepSpeedPlugin>({.distributed_type = "DEEPSPEED",
                                                 .mixed_precision = "bf16",
                                                 .deepspeed_config = {{"zero_stage", std::int64_t{3}},
                                                                      {"gradient_accumulation_steps", std::int64_t{4}},
                                                                      {"gradient_clipping", 0.5},
                                                                      {"offload_optimizer_device", "nvme"},
                                                                      {"offload_optimizer_nvme_path", "/scratch"}}});
  EXPECT_EQ(plugin.gradient_accumulation_steps, 4);
  EXPECT_EQ(plugin.gradient_clipping, 0.5);
  EXPECT_TRUE(plugin.sharding->reshard_after_forward);
  EXPECT_EQ(plugin.sharding->offload_optimizer, OffloadDevice::kFiles);
  EXPECT_EQ(plugin.sharding->offload_optimizer_path, "/scratch");
  EXPECT_TRUE(deepspeed_requested());
  EXPECT_EQ(environment("ACCELERATE_CONFIG_DS_FIELDS"),
            "gradient_accumulation_steps,gradient_clipping,offload_optimizer_device,offload_optimizer_nvme_path,zero_"
            "stage,mixed_precision");
}

// The same for Megatron-LM: the defaults of the launcher, and what the file sets.
TEST_F(LaunchEnvironmentTest, MegatronsOptionsReachThePlugin) {
  environment_.set(environment_of({.distributed_type = "MEGATRON_LM",
                                   .megatron_lm_config = {{"megatron_lm_tp_degree", std::int64_t{2}},
                                                          {"megatron_lm_sequence_parallelism", true},
                                                          {"megatron_lm_recompute_activations", true},
                                                          {"megatron_lm_use_distributed_optimizer", "true"},
                                                          {"megatron_lm_num_micro_batches", std::int64_t{4}},
                                                          {"megatron_lm_gradient_clipping", 0.5}}}));
  EXPECT_TRUE(megatron_lm_requested());
  EXPECT_EQ(environment("MEGATRON_LM_SEQUENCE_PARALLELISM"), "True");
  EXPECT_EQ(environment("MEGATRON_LM_PP_DEGREE"), "1");
  std::vector<std::string> problems;
  const auto plan = resolve(MegatronLMPlugin(), /*world_size=*/8, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(plan.parallelism_config, (ParallelismConfig{.dp_shard_size = 4, .tp_size = 2}));
  EXPECT_EQ(plan.plugin.sequence_parallelism, true);
  EXPECT_EQ(plan.plugin.gradient_clipping, 0.5);
  EXPECT_EQ(plan.resolved.gradient_accumulation_steps, 4);
  EXPECT_TRUE(plan.resolved.sharding->activation_checkpointing);
}

// Files keep sections of an earlier choice. Only the section of the current type counts.
TEST_F(LaunchEnvironmentTest, SectionsOfAnotherTypeAreNotUsed) {
  const LaunchConfig config{.distributed_type = "MULTI_CPU",
                            .deepspeed_config = {{"zero_stage", std::int64_t{3}}},
                            .fsdp_config = {{"fsdp_version", std::int64_t{2}}}};
  EXPECT_THAT(environment_of(config),
              AllOf(Not(Contains(Key(StartsWith("FSDP_")))), Not(Contains(Key(StartsWith("ACCELERATE_DEEPSPEED")))),
                    Not(Contains(Key("ACCELERATE_USE_FSDP")))));
}

// Axes that are not given have the size 1.
TEST_F(LaunchEnvironmentTest, AMeshReachesTheProgram) {
  std::vector<std::string> problems;
  EXPECT_FALSE(parallelism_config_of_environment(problems).has_value());
  const auto variables = environment_of({.distributed_type = "FSDP",
                                         .parallelism_config = {{"parallelism_config_tp_size", std::int64_t{2}},
                                                                {"parallelism_config_cp_size", std::int64_t{4}},
                                                                {"parallelism_config_ep_size", std::int64_t{3}}}});
  EXPECT_THAT(variables,
              IsSupersetOf({Pair("ACCELERATE_USE_PARALLELISM_CONFIG", "true"), Pair("PARALLELISM_CONFIG_TP_SIZE", "2"),
                            Pair("PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"),
                            Pair("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather"),
                            Pair("PARALLELISM_CONFIG_SP_BACKEND", "deepspeed")}));
  environment_.set(variables);
  const auto mesh = parallelism_config_of_environment(problems);
  ASSERT_TRUE(mesh.has_value());
  EXPECT_EQ(mesh->tp_size, 2);
  EXPECT_EQ(mesh->cp_size, 4);
  EXPECT_EQ(mesh->ep_size, 3);
  EXPECT_EQ(mesh->dp_shard_size, 1);
  EXPECT_THAT(problems, IsEmpty());
  environment_.set({{"PARALLELISM_CONFIG_TP_SIZE", "0"}});
  parallelism_config_of_environment(problems);
  EXPECT_THAT(problems, ElementsAre(::testing::HasSubstr("PARALLELISM_CONFIG_TP_SIZE: expected an integer from 1 to")));
}

}  // namespace
}  // namespace accel::testing
