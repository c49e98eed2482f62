// DeepSpeedPlugin: fields, variables and files, and what they mean for sharding. The precedence and defaults are
// those of accelerate/utils/dataclasses.py and of DeepSpeed; each test names one rule.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "reference/config/plugins/sharding.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string deepspeed_problems(const DeepSpeedPlugin& plugin, const std::string& mixed_precision = "no") {
  std::vector<std::string> problems;
  resolve(plugin, mixed_precision, problems);
  return fmt::format("{}", fmt::join(problems, "\n"));
}

ResolvedPlugin resolved(const DeepSpeedPlugin& plugin, const std::string& mixed_precision = "no") {
  std::vector<std::string> problems;
  auto resolved = resolve(plugin, mixed_precision, problems);
  EXPECT_THAT(problems, IsEmpty());
  return resolved;
}

class DeepSpeedPluginTest : public ::testing::Test {
 protected:
  std::string file(const std::string& content) { return folder_.write("ds.json", content); }

  CleanEnvironment environment_{{"ACCELERATE_"}};
  TemporaryFolder folder_;
};

// Stage 1 shards optimizer state, 2 adds gradients, 3 adds parameters. All of them step in backward, as DeepSpeed's
// engine does.
TEST_F(DeepSpeedPluginTest, EachStageShardsMore) {
  EXPECT_FALSE(resolved({.zero_stage = 0}).sharding.has_value());
  for (int stage = 0; stage <= 3; ++stage) {
    const auto plugin = resolved({.zero_stage = stage});
    EXPECT_TRUE(plugin.steps_in_backward);
    if (stage == 0) continue;
    EXPECT_EQ(plugin.sharding->parameters, stage == 3);
    EXPECT_EQ(plugin.sharding->reshard_after_forward, stage == 3);
    EXPECT_EQ(plugin.sharding->gradients, stage >= 2);
    EXPECT_EQ(plugin.sharding->prefetch, stage == 3 ? std::optional(Prefetch::kBackwardPre) : std::nullopt);
    EXPECT_EQ(plugin.sharding->forward_prefetch, stage == 3 ? std::optional(true) : std::nullopt);
    EXPECT_TRUE(plugin.sharding->sync_module_states);
    EXPECT_EQ(plugin.sharding->wrap.kind, stage == 3 ? WrapPolicy::Kind::kElements : WrapPolicy::Kind::kNone);
  }
}

// The values of a plugin without a file, fields or variables.
TEST_F(DeepSpeedPluginTest, TheDefaultIsStage2WithClippingAt1) {
  const auto plugin = resolved({});
  EXPECT_FALSE(plugin.sharding->parameters);
  EXPECT_TRUE(plugin.sharding->gradients);
  EXPECT_EQ(plugin.gradient_accumulation_steps, std::nullopt);
  EXPECT_EQ(plugin.gradient_clipping, 1.0);
}

// They are strings, because "auto" is allowed too.
TEST_F(DeepSpeedPluginTest, NumbersOfThePluginAreUsed) {
  const auto plugin = resolved({.gradient_accumulation_steps = "4", .gradient_clipping = "0.5"});
  EXPECT_EQ(plugin.gradient_accumulation_steps, 4);
  EXPECT_EQ(plugin.gradient_clipping, 0.5);
  // Zero disables clipping, as in DeepSpeed.
  EXPECT_EQ(resolved({.gradient_clipping = "0"}).gradient_clipping, std::nullopt);
  EXPECT_EQ(resolved({.gradient_accumulation_steps = "3", .zero_stage = 0}).gradient_accumulation_steps, 3);
}

// `accel launch` passes its flags in these variables.
TEST_F(DeepSpeedPluginTest, VariablesAreReadForAbsentFields) {
  environment_.set({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"},
                    {"ACCELERATE_GRADIENT_CLIPPING", "3"},
                    {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                    {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
                    {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", folder_.path()},
                    {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"},
                    {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", folder_.path("params")},
                    {"ACCELERATE_DEEPSPEED_CONFIG_FILE", "none"}});
  const auto given = resolved({});
  EXPECT_EQ(given.gradient_accumulation_steps, 2);
  EXPECT_EQ(given.gradient_clipping, 3.0);
  EXPECT_TRUE(given.sharding->parameters);
  EXPECT_EQ(given.sharding->offload_optimizer, OffloadDevice::kFiles);
  EXPECT_EQ(given.sharding->offload_optimizer_path, folder_.path());
  EXPECT_EQ(given.sharding->offload_parameters, OffloadDevice::kFiles);
  EXPECT_EQ(given.sharding->offload_parameters_path, folder_.path("params"));
  const auto own = resolved({.gradient_accumulation_steps = "auto",
                             .gradient_clipping = "1.5",
                             .zero_stage = 1,
                             .offload_optimizer_device = "cpu",
                             .offload_param_device = "none"});
  EXPECT_EQ(own.gradient_accumulation_steps, std::nullopt);
  EXPECT_EQ(own.gradient_clipping, 1.5);
  EXPECT_FALSE(own.sharding->gradients);
  EXPECT_EQ(own.sharding->offload_optimizer, OffloadDevice::kCpu);
  EXPECT_EQ(own.sharding->offload_optimizer_path, "");
  EXPECT_EQ(own.sharding->offload_parameters, OffloadDevice::kNone);
}

// Offloading unsharded state would put all of it into the memory of every process.
TEST_F(DeepSpeedPluginTest, OffloadNeedsAStageThatShardsIt) {
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(deepspeed_problems({.zero_stage = stage, .offload_optimizer_device = "cpu"}).empty(), stage >= 1)
        << stage;
    EXPECT_EQ(deepspeed_problems({.zero_stage = stage, .offload_param_device = "cpu"}).empty(), stage == 3) << stage;
  }
  EXPECT_THAT(deepspeed_problems({.zero_stage = 2, .offload_param_device = "cpu"}),
              HasSubstr("deepspeed_plugin: offload_param_device: 'cpu' requires zero_stage 3, but zero_stage is 2"));
}

// Also a folder that does not exist, or is a file, is found before the training starts.
TEST_F(DeepSpeedPluginTest, Stage3HasDeepSpeedsUnits) {
  const auto units = [&](const DeepSpeedPlugin& plugin) {
    const auto sharding = *resolved(plugin).sharding;
    return std::tuple(sharding.wrap.min_num_params, sharding.max_prefetched_numel, sharding.max_live_numel);
  };
  EXPECT_EQ(units({.zero_stage = 3}), std::tuple(100'000, 50'000'000, 1'000'000'000));
  EXPECT_EQ(units({.zero_stage = 3,
                   .stage3_param_persistence_threshold = 7,
                   .stage3_prefetch_bucket_size = 8,
                   .stage3_max_live_parameters = 9}),
            std::tuple(7, 8, 9));
  EXPECT_EQ(resolved({.zero_stage = 3, .wrap_modules = {"head"}}).sharding->wrap.modules,
            std::vector<std::string>{"head"});
  EXPECT_THAT(deepspeed_problems({.zero_stage = 2, .wrap_modules = {"head"}}),
              HasSubstr("deepspeed_plugin: wrap_modules: requires zero_stage 3, but zero_stage is 2"));
  EXPECT_THAT(deepspeed_problems({.zero_stage = 3, .stage3_max_live_parameters = -1}),
              HasSubstr("stage3_max_live_parameters: expected 0 or more, got '-1'"));
}

TEST_F(DeepSpeedPluginTest, NvmeNeedsAFolder) {
  EXPECT_THAT(deepspeed_problems({.offload_optimizer_device = "nvme"}),
              HasSubstr("offload_optimizer_nvme_path: missing"));
  EXPECT_THAT(deepspeed_problems({.zero_stage = 3, .offload_param_device = "nvme", .offload_param_nvme_path = "none"}),
              HasSubstr("offload_param_nvme_path: missing"));
  EXPECT_THAT(deepspeed_problems({.offload_optimizer_device = "nvme", .offload_optimizer_nvme_path = file("{}")}),
              HasSubstr("offload_optimizer_nvme_path: expected a folder"));
}

// Under fp8, everything around the float8 layers is bfloat16.
TEST_F(DeepSpeedPluginTest, MixedPrecisionDeterminesAllDtypes) {
  for (const auto& [name, dtype] : {std::pair("fp16", FloatType::kFloat16), std::pair("bf16", FloatType::kBFloat16),
                                    std::pair("fp8", FloatType::kBFloat16)}) {
    const auto sharding = *resolved({}, name).sharding;
    EXPECT_EQ(sharding.param_dtype, dtype);
    EXPECT_EQ(sharding.reduce_dtype, dtype);
    EXPECT_EQ(sharding.buffer_dtype, dtype);
  }
  EXPECT_EQ(resolved({}).sharding->param_dtype, std::nullopt);
}

TEST_F(DeepSpeedPluginTest, AllProblemsAreReported) {
  environment_.set({{"ACCELERATE_DEEPSPEED_ZERO3_INIT", "soon"}});
  EXPECT_THAT(
      deepspeed_problems({.gradient_accumulation_steps = "0",
                          .gradient_clipping = "-1",
                          .zero_stage = 4,
                          .offload_optimizer_device = "disk",
                          .offload_param_device = "tape"}),
      AllOf(HasSubstr("gradient_accumulation_steps: expected an integer from 1 to 2147483647 or \"auto\", got '0'"),
            HasSubstr("gradient_clipping: expected a number of 0 or more, or \"auto\", got '-1'"),
            HasSubstr("zero_stage: expected 0 to 3, got '4'"),
            HasSubstr("offload_optimizer_device: expected none, cpu, nvme, got 'disk'"),
            HasSubstr("offload_param_device: expected none, cpu, nvme, got 'tape'"),
            HasSubstr("ACCELERATE_DEEPSPEED_ZERO3_INIT: expected true or false, got 'soon'")));
}

// Consequences of the wrong stage would only distract from the cause.
TEST_F(DeepSpeedPluginTest, AWrongStageCausesNoOtherProblem) {
  EXPECT_EQ(deepspeed_problems({.zero_stage = 4, .offload_optimizer_device = "cpu", .offload_param_device = "cpu"}),
            "deepspeed_plugin: zero_stage: expected 0 to 3, got '4'");
}

// As in Accelerate: with a file, the plugin's fields have no effect.
TEST_F(DeepSpeedPluginTest, AFilePrecedesFieldsAndVariables) {
  environment_.set({{"ACCELERATE_GRADIENT_CLIPPING", "7"}});
  const auto plugin =
      resolved({.hf_ds_config = file(
                    R"({"gradient_accumulation_steps": 4, "gradient_clipping": 0.25, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}}})"),
                .gradient_accumulation_steps = "2",
                .zero_stage = 1,
                .offload_optimizer_device = "none"});
  EXPECT_EQ(plugin.gradient_accumulation_steps, 4);
  EXPECT_EQ(plugin.gradient_clipping, 0.25);
  EXPECT_TRUE(plugin.sharding->parameters);
  EXPECT_EQ(plugin.sharding->offload_optimizer, OffloadDevice::kCpu);
  EXPECT_EQ(plugin.sharding->offload_parameters, OffloadDevice::kFiles);
  EXPECT_EQ(plugin.sharding->offload_parameters_path, "/nvme");
}

// This is the meaning of "auto" in the files of Accelerate's users.
TEST_F(DeepSpeedPluginTest, AutoInAFileTakesThePluginsValue) {
  environment_.set(
      {{"ACCELERATE_DEEPSPEED_CONFIG_FILE", file(R"({"gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto", "nvme_path": "auto"},
      "stage3_gather_16bit_weights_on_model_save": "auto"},
      "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"})")}});
  const auto plugin = resolved({.gradient_accumulation_steps = "2",
                                .gradient_clipping = "0.5",
                                .zero_stage = 1,
                                .offload_optimizer_device = "nvme",
                                .offload_optimizer_nvme_path = "/nvme"},
                               "fp16");
  EXPECT_EQ(plugin.gradient_accumulation_steps, 2);
  EXPECT_EQ(plugin.gradient_clipping, 0.5);
  EXPECT_FALSE(plugin.sharding->gradients);
  EXPECT_EQ(plugin.sharding->offload_optimizer_path, "/nvme");
  EXPECT_TRUE(resolved({}).sharding->gradients);
  EXPECT_EQ(resolved({}).gradient_accumulation_steps, std::nullopt);
  EXPECT_EQ(resolved({}).gradient_clipping, 1.0);
}

// Next to a file the plugin's fields are ignored, so they must not fill the gaps.
TEST_F(DeepSpeedPluginTest, AbsentKeysOfAFileHaveDeepSpeedsDefaults) {
  const auto plugin = resolved({.hf_ds_config = file(R"({"zero_optimization": {"stage": 2}})"),
                                .gradient_accumulation_steps = "2",
                                .gradient_clipping = "3",
                                .offload_optimizer_device = "cpu"},
                               "bf16");
  EXPECT_EQ(plugin.gradient_accumulation_steps, 1);
  EXPECT_EQ(plugin.gradient_clipping, std::nullopt);
  EXPECT_EQ(plugin.sharding->offload_optimizer, OffloadDevice::kNone);
  EXPECT_EQ(plugin.sharding->param_dtype, FloatType::kBFloat16);
}

// Two different precisions would be applied by two layers, so a disagreement is an error.
TEST_F(DeepSpeedPluginTest, AFileAgreesWithMixedPrecision) {
  const auto problems = [&](const std::string& sections, const std::string& mixed_precision) {
    return deepspeed_problems({.hf_ds_config = file(R"({"zero_optimization": {"stage": 2}, )" + sections + "}")},
                              mixed_precision);
  };
  const std::string bf16 = R"("bf16": {"enabled": true})", none = R"("fp16": {"enabled": false})";
  EXPECT_EQ(problems(bf16, "bf16"), "");
  EXPECT_EQ(problems(bf16, "fp8"), "");
  EXPECT_EQ(problems(bf16 + "," + none, "bf16"), "");
  EXPECT_EQ(problems(none, "no"), "");
  EXPECT_THAT(problems(bf16, "no"),
              HasSubstr("bf16.enabled: true contradicts mixed_precision: 'no'; set mixed_precision to 'bf16'"));
  EXPECT_THAT(problems(bf16, "fp16"), HasSubstr("bf16.enabled: true contradicts mixed_precision: 'fp16'"));
  EXPECT_THAT(problems(none, "fp16"),
              HasSubstr("fp16.enabled: false contradicts mixed_precision: 'fp16'; set mixed_precision to 'no'"));
}

// DeepSpeed's default would be no sharding at all, which no user who writes such a file wants.
TEST_F(DeepSpeedPluginTest, AFileMustNameItsStage) {
  EXPECT_THAT(deepspeed_problems({.hf_ds_config = file("{}")}), HasSubstr("ds.json: zero_optimization.stage: missing"));
  EXPECT_THAT(deepspeed_problems({.hf_ds_config = file(R"({"zero_optimization": {}})")}),
              HasSubstr("zero_optimization.stage: missing"));
}

// The keys as in the file, so that a user can search for them.
TEST_F(DeepSpeedPluginTest, ProblemsOfAFileAreReportedWithTheirKeys) {
  EXPECT_THAT(
      deepspeed_problems(
          {.hf_ds_config = file(
               R"({"gradient_accumulation_steps": 1.5, "gradient_clipping": "some", "zero_optimization": {"stage": 4,
      "offload_optimizer": {"device": "nvme"}}, "fp16": {"enabled": "perhaps"}})")}),
      AllOf(HasSubstr("ds.json: gradient_accumulation_steps: expected an integer from 1"),
            HasSubstr("ds.json: gradient_clipping: expected a number"),
            HasSubstr("ds.json: zero_optimization.stage: expected 0 to 3, got '4'"),
            HasSubstr("offload_optimizer_nvme_path: missing"),
            HasSubstr("fp16.enabled: expected true, false or \"auto\", got 'perhaps'")));
  EXPECT_THAT(deepspeed_problems({.hf_ds_config = folder_.path("none.json")}),
              AllOf(HasSubstr("deepspeed_plugin: hf_ds_config"), HasSubstr("none.json")));
}

// The launcher lists the flags that were given; a file would override them without notice.
TEST_F(DeepSpeedPluginTest, FieldsOfTheLauncherNextToAFileAreAProblem) {
  environment_.set({{"ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero_stage,mixed_precision"}});
  EXPECT_EQ(deepspeed_problems({}), "");
  EXPECT_THAT(deepspeed_problems({.hf_ds_config = file(R"({"zero_optimization": {"stage": 2}})")}),
              AllOf(HasSubstr("'zero_stage' would be ignored"), Not(HasSubstr("'mixed_precision'")),
                    Not(HasSubstr("'deepspeed_config_file'"))));
}

// --- train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks -----------

struct Completed {
  std::optional<int> micro = {};
  int steps = 0;
  std::string problem = {};
  bool operator==(const Completed&) const = default;
};

Completed completed(BatchSizes sizes, int steps, int ranks) {
  Completed result{.steps = steps};
  result.problem = complete(sizes, result.steps, ranks);
  result.micro = sizes.micro;
  return result;
}

TEST(BatchSizesTest, TheMissingOneFollowsFromTheOthers) {
  for (const int ranks : {1, 2, 4}) {
    for (const int micro : {1, 3}) {
      for (const int steps : {1, 5}) {
        const Completed expected{.micro = micro, .steps = steps};
        const int train = micro * steps * ranks;
        EXPECT_EQ(completed({.train = train, .micro = micro, .derives_steps = true}, 1, ranks), expected);
        EXPECT_EQ(completed({.train = train}, steps, ranks), expected);
        EXPECT_EQ(completed({.train = train, .micro = micro}, steps, ranks), expected);
        EXPECT_EQ(completed({.micro = micro}, steps, ranks), expected);
      }
    }
  }
  EXPECT_EQ(completed({}, 3, 2), (Completed{.steps = 3}));
  EXPECT_EQ(completed({.train = 8, .derives_steps = true}, 1, 2), (Completed{.micro = 4, .steps = 1}));
}

TEST(BatchSizesTest, AContradictionIsAProblem) {
  EXPECT_EQ(
      completed({.train = 32, .micro = 4}, 2, 2).problem,
      "train_batch_size: expected 16, which is train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 2 x 2 "
      "data-parallel ranks, got 32; change one of them, or omit it, so that it follows from the others");
  EXPECT_EQ(
      completed({.train = 30, .micro = 4, .derives_steps = true}, 1, 2).problem,
      "train_batch_size: expected a multiple of train_micro_batch_size_per_gpu 4 x 2 data-parallel ranks = 8, got "
      "30; change one of them");
  EXPECT_EQ(
      completed({.train = 30}, 4, 2).problem,
      "train_batch_size: expected a multiple of gradient_accumulation_steps 4 x 2 data-parallel ranks = 8, got 30; "
      "change one of them");
  EXPECT_THAT(completed({.train = 1, .micro = 2'000'000'000}, 2'000'000'000, 4).problem, HasSubstr("got 1;"));
}

TEST_F(DeepSpeedPluginTest, BatchSizesOfAFileAreRead) {
  const auto sizes = [&](const std::string& keys) {
    return resolved({.hf_ds_config = file(R"({"zero_optimization": {"stage": 2}, )" + keys + "}")}).batch_sizes;
  };
  const auto both = sizes(R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 2)");
  EXPECT_EQ(both.train, 8);
  EXPECT_EQ(both.micro, 2);
  EXPECT_TRUE(both.derives_steps);
  const auto automatic = sizes(
      R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto")");
  EXPECT_EQ(automatic.train, std::nullopt);
  EXPECT_EQ(automatic.micro, std::nullopt);
  EXPECT_FALSE(automatic.derives_steps);
  EXPECT_THAT(deepspeed_problems({.hf_ds_config = file(R"({"zero_optimization": {"stage": 2}, "train_batch_size": 0,
      "train_micro_batch_size_per_gpu": 1.5})")}),
              AllOf(HasSubstr("train_batch_size: expected 1 or more, got"),
                    HasSubstr("train_micro_batch_size_per_gpu: expected")));
}

TEST_F(DeepSpeedPluginTest, UniversalCheckpointsAreRefused) {
  const auto problems = [&](const std::string& value) {
    return deepspeed_problems(
        {.hf_ds_config =
             file(R"({"zero_optimization": {"stage": 2}, "checkpoint": {"load_universal": )" + value + "}}")});
  };
  EXPECT_THAT(problems("true"), HasSubstr("checkpoint.load_universal: true is unsupported; expected false"));
  EXPECT_EQ(problems("false"), "");
  EXPECT_THAT(problems("3"), HasSubstr("checkpoint.load_universal: expected true or false, got '3'"));
}

}  // namespace
}  // namespace accel::testing
