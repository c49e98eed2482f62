// FullyShardedDataParallelPlugin: fields, environment variables and their precedence, and what they mean for
// sharding. Names, numbers and defaults are those of accelerate/utils/dataclasses.py; the two versions of FSDP
// accept different values.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "reference/config/plugins/options.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Fsdp = FullyShardedDataParallelPlugin;

class FsdpPluginTest : public ::testing::Test {
 protected:
  CleanEnvironment environment_{{"FSDP_"}};
};

std::string fsdp_problems(const Fsdp& plugin, const std::string& mixed_precision = "no") {
  std::vector<std::string> problems;
  EXPECT_EQ(resolve(plugin, mixed_precision, problems).sharding.has_value() && !problems.empty(), false);
  return fmt::format("{}", fmt::join(problems, "\n"));
}

std::optional<ShardingOptions> sharding_of(const Fsdp& plugin, const std::string& mixed_precision = "no") {
  std::vector<std::string> problems;
  auto resolved = resolve(plugin, mixed_precision, problems);
  EXPECT_THAT(problems, IsEmpty());
  return resolved.sharding;
}

// A strategy by name, and what it means for the parameters.
struct Strategy {
  const char* name;
  bool reshard_after_forward, hybrid;
};
// In the order of Accelerate's numbers 1 to 5: name, reshard_after_forward, hybrid.
constexpr Strategy kStrategies[] = {{"FULL_SHARD", true, false},
                                    {"SHARD_GRAD_OP", false, false},
                                    {"NO_SHARD", false, false},
                                    {"HYBRID_SHARD", true, true},
                                    {"HYBRID_SHARD_ZERO2", false, true}};

void expect_strategy(const Fsdp& plugin, const Strategy& strategy) {
  const auto sharding = sharding_of(plugin);
  ASSERT_EQ(sharding.has_value(), strategy.name != std::string("NO_SHARD"));
  if (!sharding) return;
  EXPECT_TRUE(sharding->parameters && sharding->gradients);
  EXPECT_EQ(sharding->reshard_after_forward, strategy.reshard_after_forward);
  EXPECT_EQ(sharding->hybrid, strategy.hybrid);
}

// Configuration files of Accelerate contain all these forms.
TEST_F(FsdpPluginTest, EveryStrategyIsAcceptedByNameInAnyCaseAndByNumber) {
  for (int index = 0; index < 5; ++index) {
    const auto& strategy = kStrategies[index];
    std::string lower = strategy.name;
    for (auto& letter : lower) letter = static_cast<char>(std::tolower(letter));
    for (const auto& name : {std::string(strategy.name), lower, std::to_string(index + 1)}) {
      SCOPED_TRACE(name);
      expect_strategy({.sharding_strategy = name}, strategy);
      expect_strategy({.reshard_after_forward = name}, strategy);
      environment_.set({{"FSDP_SHARDING_STRATEGY", name}});
      expect_strategy({}, strategy);
      environment_.clear();
    }
  }
}

// As in Accelerate: without a policy for wrapping, the model is one unit.
TEST_F(FsdpPluginTest, TheDefaultIsFullShardOfTheFullModel) {
  const auto sharding = sharding_of({});
  expect_strategy({}, kStrategies[0]);
  EXPECT_EQ(sharding->prefetch, std::nullopt);
  EXPECT_EQ(sharding->wrap.kind, WrapPolicy::Kind::kNone);
  EXPECT_EQ(sharding->state_dict_type, "FULL_STATE_DICT");
  EXPECT_EQ(sharding->forward_prefetch, std::nullopt);
  EXPECT_FALSE(sharding->sync_module_states || sharding->activation_checkpointing);
  EXPECT_FALSE(sharding->param_dtype || sharding->reduce_dtype || sharding->buffer_dtype);
  EXPECT_EQ(sharding->offload_parameters, OffloadDevice::kNone);
}

// Version 1 accepts a strategy in either field, for the sake of files that an older Accelerate wrote.
TEST_F(FsdpPluginTest, FieldsPrecedeTheEnvironment) {
  environment_.set({{"FSDP_SHARDING_STRATEGY", "NO_SHARD"}, {"FSDP_RESHARD_AFTER_FORWARD", "true"}});
  expect_strategy({.sharding_strategy = "HYBRID_SHARD", .reshard_after_forward = "SHARD_GRAD_OP"}, kStrategies[3]);
  expect_strategy({.reshard_after_forward = "SHARD_GRAD_OP"}, kStrategies[1]);
  expect_strategy({}, kStrategies[2]);
}

// In version 2 the field replaces the strategy, and the old variable is ignored.
TEST_F(FsdpPluginTest, Version2AcceptsTrueOrFalse) {
  expect_strategy({.fsdp_version = 2}, kStrategies[0]);
  expect_strategy({.fsdp_version = 2, .reshard_after_forward = "True"}, kStrategies[0]);
  expect_strategy({.fsdp_version = 2, .reshard_after_forward = "false"}, kStrategies[1]);
  environment_.set(
      {{"FSDP_VERSION", "2"}, {"FSDP_RESHARD_AFTER_FORWARD", "no"}, {"FSDP_SHARDING_STRATEGY", "NO_SHARD"}});
  expect_strategy({}, kStrategies[1]);
  expect_strategy({.reshard_after_forward = "yes"}, kStrategies[0]);
}

// A file that was written for the other version must not be taken for this one.
TEST_F(FsdpPluginTest, AVersionRejectsValuesOfTheOther) {
  EXPECT_THAT(fsdp_problems({.reshard_after_forward = "true"}),
              HasSubstr("fsdp_plugin: reshard_after_forward: expected FULL_SHARD"));
  EXPECT_THAT(fsdp_problems({.sharding_strategy = "FULL_SHARD", .reshard_after_forward = "false"}),
              HasSubstr("got 'false'"));
  EXPECT_THAT(fsdp_problems({.fsdp_version = 2, .reshard_after_forward = "FULL_SHARD"}),
              HasSubstr("expected true (as FULL_SHARD) or false"));
  EXPECT_THAT(fsdp_problems({.fsdp_version = 2, .sharding_strategy = "FULL_SHARD"}),
              HasSubstr("with version 2 set reshard_after_forward"));
  expect_strategy({.fsdp_version = 2, .sharding_strategy = "FULL_SHARD", .reshard_after_forward = "false"},
                  kStrategies[1]);
  EXPECT_THAT(fsdp_problems({.fsdp_version = 2, .forward_prefetch = false}), HasSubstr("forward_prefetch"));
  EXPECT_THAT(fsdp_problems({.fsdp_version = 2, .state_dict_type = "LOCAL_STATE_DICT"}),
              HasSubstr("state_dict_type: expected SHARDED_STATE_DICT"));
  EXPECT_THAT(
      fsdp_problems({.fsdp_version = 2, .mixed_precision_policy = MixedPrecisionPolicy{.buffer_dtype = "bf16"}}),
      HasSubstr("buffer_dtype: 'bf16' belongs to fsdp_version 1"));
}

// Names and numbers are those of Accelerate's enumerations.
TEST_F(FsdpPluginTest, PrefetchIsAnOptionOfVersion1AndAlwaysOnInVersion2) {
  EXPECT_EQ(sharding_of({.backward_prefetch = "backward_pre"})->prefetch, Prefetch::kBackwardPre);
  EXPECT_EQ(sharding_of({.backward_prefetch = "2"})->prefetch, Prefetch::kBackwardPost);
  EXPECT_EQ(sharding_of({.backward_prefetch = "NO_PREFETCH"})->prefetch, Prefetch::kNone);
  EXPECT_EQ(sharding_of({.forward_prefetch = true})->forward_prefetch, true);
  EXPECT_EQ(sharding_of({.forward_prefetch = false})->forward_prefetch, false);
  // Launchers set both variables with their defaults, so these are not the program's.
  environment_.set({{"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}, {"FSDP_FORWARD_PREFETCH", "false"}});
  EXPECT_EQ(sharding_of({})->prefetch, std::nullopt);
  EXPECT_EQ(sharding_of({})->forward_prefetch, std::nullopt);
  environment_.set({{"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"}, {"FSDP_FORWARD_PREFETCH", "true"}});
  EXPECT_EQ(sharding_of({})->prefetch, Prefetch::kBackwardPost);
  EXPECT_EQ(sharding_of({})->forward_prefetch, true);
  EXPECT_EQ(sharding_of({.fsdp_version = 2})->prefetch, Prefetch::kBackwardPre);
  EXPECT_EQ(sharding_of({.fsdp_version = 2})->forward_prefetch, std::nullopt);
}

// Version 1 also has a dtype for buffers, as in Accelerate.
TEST_F(FsdpPluginTest, MixedPrecisionSetsTheDtypesOfTheVersion) {
  const auto full = sharding_of({}, "bf16");
  EXPECT_EQ(full->param_dtype, FloatType::kBFloat16);
  EXPECT_EQ(full->reduce_dtype, FloatType::kBFloat16);
  EXPECT_EQ(full->buffer_dtype, FloatType::kBFloat16);
  const auto second = sharding_of({.fsdp_version = 2}, "fp16");
  EXPECT_EQ(second->param_dtype, FloatType::kFloat16);
  EXPECT_EQ(second->reduce_dtype, FloatType::kFloat16);
  EXPECT_EQ(second->buffer_dtype, std::nullopt);
  EXPECT_EQ(sharding_of({}, "fp8")->param_dtype, FloatType::kBFloat16) << "what is around layers in float8";
}

// A policy without reduce_dtype reduces in param_dtype, as torch.distributed.fsdp does.
TEST_F(FsdpPluginTest, APolicyPrecedesMixedPrecision) {
  const auto sharding =
      sharding_of({.mixed_precision_policy = MixedPrecisionPolicy{.param_dtype = "torch.float16"}}, "bf16");
  EXPECT_EQ(sharding->param_dtype, FloatType::kFloat16);
  EXPECT_EQ(sharding->reduce_dtype, FloatType::kFloat16);
  EXPECT_EQ(sharding->buffer_dtype, std::nullopt);
  EXPECT_EQ(sharding_of({.mixed_precision_policy = MixedPrecisionPolicy{.param_dtype = "bf16", .reduce_dtype = "fp32"}})
                ->reduce_dtype,
            FloatType::kFloat32);
  EXPECT_EQ(sharding_of({.mixed_precision_policy = MixedPrecisionPolicy{}}, "bf16")->param_dtype, std::nullopt);
  EXPECT_THAT(fsdp_problems(
                  {.mixed_precision_policy = MixedPrecisionPolicy{.param_dtype = "fp8", .reduce_dtype = "torch.int8"}}),
              AllOf(HasSubstr("mixed_precision_policy: param_dtype: expected fp32, fp16 or bf16, got 'fp8'"),
                    HasSubstr("reduce_dtype: expected fp32, fp16 or bf16, got 'torch.int8'")));
}

// Modules by name are added to those of the classes.
TEST_F(FsdpPluginTest, ClassesAreWrappedByName) {
  const auto wrap = sharding_of({.auto_wrap_policy = "transformer_based_wrap",
                                 .transformer_cls_names_to_wrap = {"Block"},
                                 .wrap_modules = {"head"}})
                        ->wrap;
  EXPECT_EQ(wrap.kind, WrapPolicy::Kind::kByClass);
  EXPECT_THAT(wrap.classes, ElementsAre("Block"));
  EXPECT_THAT(wrap.modules, ElementsAre("head"));
  EXPECT_THAT(fsdp_problems({.auto_wrap_policy = "TRANSFORMER_BASED_WRAP"}),
              HasSubstr("transformer_cls_names_to_wrap: missing"));
  environment_.set(
      {{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}, {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block, Attention"}});
  EXPECT_THAT(sharding_of({})->wrap.classes, ElementsAre("Block", "Attention"));
  EXPECT_THAT(sharding_of({.transformer_cls_names_to_wrap = {"Mlp"}})->wrap.classes, ElementsAre("Mlp"));
  EXPECT_EQ(sharding_of({.auto_wrap_policy = "NO_WRAP"})->wrap.kind, WrapPolicy::Kind::kNone);
}

TEST_F(FsdpPluginTest, SizesWrapUnlessZero) {
  // More than 2^31 parameters, so the number must be 64-bit everywhere.
  const auto wrap = sharding_of({.auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = 3'000'000'000})->wrap;
  EXPECT_EQ(wrap.kind, WrapPolicy::Kind::kBySize);
  EXPECT_EQ(wrap.min_num_params, 3'000'000'000);
  EXPECT_EQ(sharding_of({.auto_wrap_policy = "SIZE_BASED_WRAP"})->wrap.kind, WrapPolicy::Kind::kNone);
  environment_.set({{"FSDP_MIN_NUM_PARAMS", "5000000000"}});
  EXPECT_EQ(sharding_of({.auto_wrap_policy = "SIZE_BASED_WRAP"})->wrap.min_num_params, 5'000'000'000);
  EXPECT_THAT(fsdp_problems({.auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = -1}),
              HasSubstr("fsdp_plugin: min_num_params: expected an integer from 0"));
}

// Invalid regular expressions must be found here and not at the first module that is matched.
TEST_F(FsdpPluginTest, IgnoredModulesAreRegularExpressions) {
  environment_.set({{"FSDP_IGNORED_MODULES", "embedding.*"}});
  EXPECT_THAT(sharding_of({})->wrap.ignored, ElementsAre("embedding.*"));
  EXPECT_THAT(sharding_of({.ignored_modules = {"head"}})->wrap.ignored, ElementsAre("head"));
  EXPECT_THAT(fsdp_problems({.wrap_modules = {"blocks\\.[0-9]+", "("}, .ignored_modules = {"[z"}}),
              AllOf(HasSubstr("wrap_modules: '(' is not a regular expression"),
                    HasSubstr("ignored_modules: '[z' is not a regular expression"), Not(HasSubstr("blocks"))));
}

// If only rank 0 loads the weights, the others must receive them.
TEST_F(FsdpPluginTest, LoadingOnceImpliesSyncModuleStates) {
  EXPECT_TRUE(sharding_of({.sync_module_states = true})->sync_module_states);
  EXPECT_TRUE(sharding_of({.sync_module_states = false, .cpu_ram_efficient_loading = true})->sync_module_states);
  EXPECT_TRUE(sharding_of({.fsdp_version = 2, .cpu_ram_efficient_loading = true})->sync_module_states);
  EXPECT_FALSE(sharding_of({.fsdp_version = 2, .sync_module_states = true})->sync_module_states);
}

// The optimizer steps where its parameters are.
TEST_F(FsdpPluginTest, OffloadIncludesTheOptimizer) {
  const auto sharding = sharding_of({.cpu_offload = true});
  EXPECT_EQ(sharding->offload_parameters, OffloadDevice::kCpu);
  EXPECT_EQ(sharding->offload_optimizer, OffloadDevice::kCpu);
}

// The defaults are Accelerate's.
TEST_F(FsdpPluginTest, StateDictTypesAreAcceptedByNameAndDefaultByVersion) {
  EXPECT_EQ(sharding_of({.state_dict_type = "sharded_state_dict"})->state_dict_type, "SHARDED_STATE_DICT");
  EXPECT_EQ(sharding_of({.state_dict_type = "2"})->state_dict_type, "LOCAL_STATE_DICT");
  EXPECT_EQ(sharding_of({.fsdp_version = 2})->state_dict_type, "SHARDED_STATE_DICT");
  environment_.set({{"FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT"}});
  EXPECT_EQ(sharding_of({.fsdp_version = 2})->state_dict_type, "FULL_STATE_DICT");
}

// The variable of each flag is used only if the field has no value.
TEST_F(FsdpPluginTest, AFieldPrecedesItsVariable) {
  struct Flag {
    const char* variable;
    std::optional<bool> Fsdp::*field;
    bool (*is_on)(const ShardingOptions&);
  };
  const Flag flags[] = {{"FSDP_OFFLOAD_PARAMS", &Fsdp::cpu_offload,
                         [](const ShardingOptions& o) { return o.offload_parameters == OffloadDevice::kCpu; }},
                        {"FSDP_SYNC_MODULE_STATES", &Fsdp::sync_module_states,
                         [](const ShardingOptions& o) { return o.sync_module_states; }},
                        {"FSDP_FORWARD_PREFETCH", &Fsdp::forward_prefetch,
                         [](const ShardingOptions& o) { return o.forward_prefetch.value_or(false); }},
                        {"FSDP_ACTIVATION_CHECKPOINTING", &Fsdp::activation_checkpointing,
                         [](const ShardingOptions& o) { return o.activation_checkpointing; }},
                        {"FSDP_CPU_RAM_EFFICIENT_LOADING", &Fsdp::cpu_ram_efficient_loading,
                         [](const ShardingOptions& o) { return o.sync_module_states; }}};
  expect_property(200, [&] {
    const auto& flag = flags[pick<std::size_t>(0, std::size(flags))];
    const auto variable = pick(0, 3), field = pick(0, 3);  // 0 is unset, 1 is no, 2 is yes
    environment_.clear();
    if (variable != 0) environment_.set({{flag.variable, variable == 2 ? "True" : "False"}});
    Fsdp plugin;
    if (field != 0) plugin.*flag.field = field == 2;
    RC_ASSERT(flag.is_on(*sharding_of(plugin)) == ((field != 0 ? field : variable) == 2));
  });
}

// NO_SHARD trains with DDP, which has neither offloading nor recomputation. Ignoring these options would surprise
// users with out-of-memory errors.
TEST_F(FsdpPluginTest, NoShardRejectsWhatDdpLacks) {
  EXPECT_THAT(fsdp_problems({.sharding_strategy = "NO_SHARD",
                             .mixed_precision_policy = MixedPrecisionPolicy{},
                             .cpu_offload = true,
                             .activation_checkpointing = true}),
              AllOf(HasSubstr("cpu_offload: has no effect with NO_SHARD"),
                    HasSubstr("activation_checkpointing: has no"), HasSubstr("mixed_precision_policy: has no")));
}

// All problems of all fields and variables are in one message.
TEST_F(FsdpPluginTest, AllProblemsAreReported) {
  environment_.set({{"FSDP_SYNC_MODULE_STATES", "perhaps"},
                    {"FSDP_USE_ORIG_PARAMS", "never"},
                    {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true"}});
  EXPECT_THAT(
      fsdp_problems({.fsdp_version = 3,
                     .sharding_strategy = "6",
                     .backward_prefetch = "EARLY",
                     .auto_wrap_policy = "WRAP",
                     .state_dict_type = "HALF"}),
      AllOf(HasSubstr("fsdp_plugin: fsdp_version: expected 1 to 2, got '3'"),
            HasSubstr("fsdp_plugin: sharding_strategy: expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
                      "HYBRID_SHARD_ZERO2 or 1 to 5, got '6'"),
            HasSubstr("backward_prefetch: expected BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH or 1 to 3, got 'EARLY'"),
            HasSubstr("auto_wrap_policy: expected TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP, got 'WRAP'"),
            HasSubstr("state_dict_type: expected"),
            HasSubstr("FSDP_SYNC_MODULE_STATES: expected true or false, got 'perhaps'"),
            HasSubstr("FSDP_USE_ORIG_PARAMS"), HasSubstr("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: unsupported")));
}

// The Accelerator collects the problems of all its options.
TEST_F(FsdpPluginTest, ProblemsAreAppendedToTheList) {
  std::vector<std::string> problems = {"before"};
  EXPECT_TRUE(resolve(Fsdp{}, "no", problems).sharding.has_value());
  EXPECT_FALSE(resolve(Fsdp{.sharding_strategy = "?"}, "no", problems).sharding.has_value());
  EXPECT_THAT(problems, ElementsAre("before", HasSubstr("sharding_strategy")));
}

// With two plugins it is unclear who shards the model.
TEST(PluginsTest, TheyExcludeEachOther) {
  EXPECT_THAT(problems_of_plugins({}), IsEmpty());
  EXPECT_THAT(problems_of_plugins({.fsdp_plugin = Fsdp{}}), IsEmpty());
  EXPECT_THAT(problems_of_plugins({.deepspeed_plugins = {{"student", {}}, {"teacher", {}}}}), IsEmpty());
  EXPECT_THAT(
      problems_of_plugins(
          {.deepspeed_plugin = DeepSpeedPlugin{}, .deepspeed_plugins = {{"teacher", {}}}, .fsdp_plugin = Fsdp{}}),
      ElementsAre(HasSubstr("deepspeed_plugins"), HasSubstr("fsdp_plugin")));
}

}  // namespace
}  // namespace accel::testing
