// The key `accelerator` of experiment files: every field of the plugins is read, and wrong values are reported with
// their lines. Without a key no plugin exists, because an empty plugin already enables sharding.
#include "sim/programs/experiments/accelerator_config.hpp"

#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include "reference/core/errors.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AcceleratorConfigTest : public ::testing::Test {
 protected:
  static AcceleratorOptions read(const std::string& text) {
    YamlProblems problems("run.yaml");
    AcceleratorOptions options;
    programs::read_accelerator(YamlReader(YAML::Load(text), "accelerator.", problems), options);
    problems.throw_if_any();
    return options;
  }
  static std::string problems_of(const std::string& text) {
    return message_of<ConfigError>([&] { read(text); });
  }

  // Variables of a launcher around the test would provide defaults.
  CleanEnvironment environment_{{"ACCELERATE_", "FSDP_"}};
};

TEST_F(AcceleratorConfigTest, WithoutPluginsThereAreNone) {
  const auto options = read("{}");
  EXPECT_FALSE(options.fsdp_plugin || options.deepspeed_plugin);
}

// A plugin without values still switches sharding on, with its defaults.
TEST_F(AcceleratorConfigTest, AnEmptyPluginCounts) {
  EXPECT_TRUE(read("fsdp_plugin: {}").fsdp_plugin.has_value());
  EXPECT_TRUE(read("deepspeed_plugin: {}").deepspeed_plugin.has_value());
}

// Every key once, with a value that is not its default.
TEST_F(AcceleratorConfigTest, FsdpFieldsAreRead) {
  const auto plugin = *read(R"(
fsdp_plugin:
  fsdp_version: 2
  reshard_after_forward: false
  mixed_precision_policy: {param_dtype: bf16, reduce_dtype: fp32}
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_cls_names_to_wrap: [Block]
  wrap_modules: ['blocks\.[0-9]+']
  ignored_modules: [head]
  cpu_offload: true
  state_dict_type: FULL_STATE_DICT
  activation_checkpointing: true
  cpu_ram_efficient_loading: true
)")
                           .fsdp_plugin;
  EXPECT_EQ(plugin.fsdp_version, 2);
  EXPECT_EQ(plugin.reshard_after_forward, "false");
  EXPECT_EQ(plugin.mixed_precision_policy->param_dtype, "bf16");
  EXPECT_EQ(plugin.mixed_precision_policy->reduce_dtype, "fp32");
  EXPECT_EQ(plugin.mixed_precision_policy->buffer_dtype, std::nullopt);
  EXPECT_EQ(plugin.auto_wrap_policy, "TRANSFORMER_BASED_WRAP");
  EXPECT_THAT(plugin.transformer_cls_names_to_wrap, ElementsAre("Block"));
  EXPECT_THAT(plugin.wrap_modules, ElementsAre("blocks\\.[0-9]+"));
  EXPECT_THAT(plugin.ignored_modules, ElementsAre("head"));
  EXPECT_EQ(plugin.state_dict_type, "FULL_STATE_DICT");
  EXPECT_TRUE(*plugin.cpu_offload && *plugin.activation_checkpointing && *plugin.cpu_ram_efficient_loading);
}

// 3 billion exceeds 32 bits.
TEST_F(AcceleratorConfigTest, FsdpFieldsOfVersion1AreRead) {
  const auto plugin =
      *read(R"(fsdp_plugin: {sharding_strategy: 2, backward_prefetch: BACKWARD_PRE, auto_wrap_policy: SIZE_BASED_WRAP,
    min_num_params: 3000000000, use_orig_params: true, sync_module_states: true, forward_prefetch: true})")
           .fsdp_plugin;
  EXPECT_EQ(plugin.sharding_strategy, "2");
  EXPECT_EQ(plugin.backward_prefetch, "BACKWARD_PRE");
  EXPECT_EQ(plugin.min_num_params, 3'000'000'000);
  EXPECT_TRUE(*plugin.use_orig_params && *plugin.sync_module_states && *plugin.forward_prefetch);
}

// FSDP version 2 has no buffer_dtype, so a single word must not set it, also if the version comes from the
// environment.
TEST_F(AcceleratorConfigTest, ASinglePrecisionSetsAllDtypesOfTheVersion) {
  const auto policy = *read("fsdp_plugin: {mixed_precision_policy: fp16}").fsdp_plugin->mixed_precision_policy;
  EXPECT_EQ(policy.param_dtype, "fp16");
  EXPECT_EQ(policy.reduce_dtype, "fp16");
  EXPECT_EQ(policy.buffer_dtype, "fp16");
  EXPECT_EQ(read("fsdp_plugin: {fsdp_version: 2, mixed_precision_policy: fp16}")
                .fsdp_plugin->mixed_precision_policy->buffer_dtype,
            std::nullopt);
  environment_.set({{"FSDP_VERSION", "2"}});
  EXPECT_EQ(read("fsdp_plugin: {mixed_precision_policy: fp16}").fsdp_plugin->mixed_precision_policy->buffer_dtype,
            std::nullopt);
  EXPECT_EQ(read("fsdp_plugin: {}").fsdp_plugin->mixed_precision_policy, std::nullopt);
}

// Numbers may also be "auto" here, as in DeepSpeed's own files, so they are kept as text.
TEST_F(AcceleratorConfigTest, DeepSpeedFieldsAreRead) {
  const auto plugin =
      *read(R"(deepspeed_plugin: {gradient_accumulation_steps: 2, gradient_clipping: auto, zero_stage: 3, )"
            R"(offload_optimizer_device: nvme,
    offload_optimizer_nvme_path: /nvme, offload_param_device: nvme, offload_param_nvme_path: /params, )"
            R"(zero3_init_flag: true, zero3_save_16bit_model: true})")
           .deepspeed_plugin;
  EXPECT_EQ(plugin.gradient_accumulation_steps, "2");
  EXPECT_EQ(plugin.gradient_clipping, "auto");
  EXPECT_EQ(plugin.zero_stage, 3);
  EXPECT_EQ(plugin.offload_optimizer_device, "nvme");
  EXPECT_EQ(plugin.offload_optimizer_nvme_path, "/nvme");
  EXPECT_EQ(plugin.offload_param_device, "nvme");
  EXPECT_EQ(plugin.offload_param_nvme_path, "/params");
  EXPECT_TRUE(*plugin.zero3_init_flag && *plugin.zero3_save_16bit_model);
}

// Some problems are found by the reader and some by the plugin itself. All need the line in the file.
TEST_F(AcceleratorConfigTest, AllProblemsOfPluginsAreReportedWithTheirLines) {
  EXPECT_THAT(
      problems_of("fsdp_plugin:\n  sharding_strategy: HALF\n  wrap_module: [a]\n  mixed_precision_policy: "
                  "fp8\ndeepspeed_plugin:\n  zero_stage: 4\n  hf_ds_config: none.json\n"),
      AllOf(HasSubstr("run.yaml:2: accelerator.fsdp_plugin: fsdp_plugin: sharding_strategy: expected FULL_SHARD"),
            HasSubstr("run.yaml:3: accelerator.fsdp_plugin.wrap_module: unknown key"),
            HasSubstr("param_dtype: expected fp32, fp16 or bf16, got 'fp8'"),
            HasSubstr("run.yaml:6: accelerator.deepspeed_plugin: deepspeed_plugin: hf_ds_config: none.json"),
            HasSubstr("fsdp_plugin and deepspeed_plugin exclude each other")));
  EXPECT_THAT(problems_of("deepspeed_plugin: {zero_stage: 4}"),
              HasSubstr("deepspeed_plugin: zero_stage: expected 0 to 3, got '4'"));
  EXPECT_THAT(problems_of("fsdp_plugin: {mixed_precision_policy: [fp16]}"),
              HasSubstr("mixed_precision_policy: expected a dtype, or a mapping of dtypes"));
}

}  // namespace
}  // namespace accel::testing
