// MegatronLMPlugin: what each field does, or why it is refused. Names, variables and defaults are those of
// accelerate/utils/dataclasses.py.
#include "reference/config/plugins/megatron_lm_plugin.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <sstream>

#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/plugins/megatron_lm_fields.hpp"
#include "reference/core/letter_case.hpp"
#include "tests/support/clean_environment.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

constexpr int kNumRanks = 8;

class MegatronLMPluginTest : public ::testing::Test {
 protected:
  static std::vector<std::string> problems(const MegatronLMPlugin& plugin) {
    std::vector<std::string> problems;
    resolve(plugin, kNumRanks, problems);
    return problems;
  }
  static MegatronLMPlan plan(const MegatronLMPlugin& plugin) {
    std::vector<std::string> problems;
    auto plan = resolve(plugin, kNumRanks, problems);
    EXPECT_THAT(problems, IsEmpty());
    return plan;
  }
  static std::optional<ParallelismConfig> mesh(const MegatronLMPlugin& plugin) {
    return plan(plugin).parallelism_config;
  }

  CleanEnvironment environment_{{"MEGATRON_LM_"}};
};

// --- every field -----------------------------------------------------------------------------------------------------

// Everything that the rest of the library reads.
std::string description(const MegatronLMPlan& plan) {
  const auto mesh = plan.parallelism_config.value_or(ParallelismConfig{});
  const auto sharding = plan.resolved.sharding.value_or(ShardingOptions{.parameters = false});
  return fmt::format("mesh {} {} {} {} {}; sharded {}: {} {} {} {} {}; steps {}; norm {}; loss {}; sequence {}",
                     mesh.dp_replicate_size, mesh.dp_shard_size, mesh.cp_size, mesh.tp_size, mesh.ep_size,
                     plan.resolved.sharding.has_value(), sharding.parameters, sharding.gradients,
                     static_cast<int>(sharding.offload_optimizer), sharding.activation_checkpointing,
                     static_cast<int>(sharding.wrap.kind), plan.resolved.gradient_accumulation_steps.value_or(-1),
                     plan.plugin.gradient_clipping.value_or(-1), plan.loss_weighting.value_or("unset"),
                     plan.plugin.sequence_parallelism.value_or(false));
}

// A value that asks for something else than the default.
struct TellingValue {
  const Field& field;

  void operator()(std::optional<bool>& value) const {
    value = std::string(field.fallback == nullptr ? "" : field.fallback) != "true";
  }
  void operator()(std::optional<std::string>& value) const {
    value = field.rule.choices.empty() ? "text" : field.rule.choices.back();
    if (field.fallback != nullptr && value == field.fallback) value = field.rule.choices.front();
  }
  template <typename Number>
  void operator()(std::optional<Number>& value) const {
    value = 2;
  }
  void operator()(std::any& value) const {
    value = [] {};
  }
  void operator()(std::vector<std::int64_t>& value) const { value = {7}; }
  void operator()(std::map<std::string, std::string>& value) const { value = {{"position_embedding_type", "rope"}}; }
};

// On 8 ranks, with what some fields require.
MegatronLMPlugin base() { return {.tp_degree = 2, .use_distributed_optimizer = true}; }

// A field that is neither used nor refused fails.
TEST_F(MegatronLMPluginTest, EveryFieldHasAnEffectOrAReason) {
  std::vector<Field> fields;
  const auto plugin = base();
  for_each_field(plugin, [&](const Field& field, const auto&) { fields.push_back(field); });
  EXPECT_EQ(fields.size(), 63U);
  for (const auto& field : fields) {
    auto without = base(), with = base();
    for_each_field(without, [&]<typename T>(const Field& other, T& value) {
      if (std::string(other.name) == field.name) value = T();
    });
    for_each_field(with, [&](const Field& other, auto& value) {
      if (std::string(other.name) == field.name) TellingValue{other}(value);
    });
    if (field.refusal == nullptr) {
      EXPECT_NE(description(plan(without)), description(plan(with))) << field.name;
    } else {
      EXPECT_EQ(description(plan(without)), description(plan(base()))) << field.name;
      EXPECT_THAT(problems(with), ElementsAre(::testing::AllOf(HasSubstr(field.name), HasSubstr(field.refusal))));
    }
  }
}

// Values that Accelerate's launcher or a ported program sets, and that change nothing.
TEST_F(MegatronLMPluginTest, DefaultsOfRefusedFieldsAreAccepted) {
  EXPECT_THAT(problems({.pp_degree = 1,
                        .no_load_optim = false,
                        .recompute_granularity = "full",
                        .recompute_method = "UNIFORM",
                        .attention_dropout = 0.0,
                        .attention_softmax_in_fp32 = true,
                        .use_rotary_position_embeddings = true,
                        .is_train_batch_min = true,
                        .lr_decay_style = "linear",
                        .min_lr = 0.0,
                        .lr_mult = 1.0,
                        .eval_iters = 100}),
              IsEmpty());
}

TEST_F(MegatronLMPluginTest, AllProblemsAreInOneList) {
  environment_.set({{"MEGATRON_LM_HIDDEN_DROPOUT", "0.1"}, {"MEGATRON_LM_CONTEXT_PARALLEL_SIZE", "many"}});
  MegatronLMPlugin plugin{.tp_degree = 0, .pp_degree = 4, .optimizer_cpu_offload = true};
  plugin.recompute_activations = true;
  plugin.lr_decay_style = "cubic";
  plugin.train_iters = 100;
  plugin.custom_loss_function = [] {};
  EXPECT_THAT(
      problems(plugin),
      ElementsAre("megatron_lm_plugin: tp_degree: expected 1 or more, got '0'",
                  "MEGATRON_LM_CONTEXT_PARALLEL_SIZE: expected 1 or more, got 'many'",
                  "megatron_lm_plugin: pp_degree: expected 1, got '4': pipeline parallelism is unsupported",
                  "MEGATRON_LM_HIDDEN_DROPOUT: expected 0, got '0.1': the program's own model determines it; set it "
                  "there",
                  "megatron_lm_plugin: train_iters: expected no value, got '100': the program's own loop determines it",
                  HasSubstr("megatron_lm_plugin: lr_decay_style: expected constant, linear, cosine, got 'cubic'"),
                  HasSubstr("megatron_lm_plugin: custom_loss_function: expected no value: it replaces a part"),
                  "megatron_lm_plugin: recompute_activations: true requires use_distributed_optimizer or "
                  "use_custom_fsdp",
                  "megatron_lm_plugin: optimizer_cpu_offload: true requires use_distributed_optimizer or "
                  "use_custom_fsdp"));
}

// --- the environment -------------------------------------------------------------------------------------------------

// Each key of the launcher sets the variable that the field of the same name reads.
TEST_F(MegatronLMPluginTest, TheVariablesAreThoseOfTheLauncher) {
  std::vector<std::string> of_fields, of_keys;
  const MegatronLMPlugin plugin;
  for_each_field(plugin, [&](const Field& field, const auto&) {
    if (field.variable == nullptr) return;
    EXPECT_EQ(field.variable, "MEGATRON_LM_" + upper_case(std::string(field.name)));
    of_fields.emplace_back(field.variable);
  });
  for (const auto& key : launch_section("megatron_lm_config").keys) {
    EXPECT_EQ(key.variable, upper_case(std::string(key.name)));
    of_keys.emplace_back(key.variable);
  }
  EXPECT_THAT(of_fields, UnorderedElementsAreArray(of_keys));
}

TEST_F(MegatronLMPluginTest, TheEnvironmentFillsInWhatTheProgramLeavesOut) {
  environment_.set({{"MEGATRON_LM_TP_DEGREE", "4"},
                    {"MEGATRON_LM_NUM_MICRO_BATCHES", "3"},
                    {"MEGATRON_LM_GRADIENT_CLIPPING", "0.5"},
                    {"MEGATRON_LM_SEQUENCE_PARALLELISM", "True"}});
  const auto resolved = plan({.gradient_clipping = 2.0});
  EXPECT_EQ(resolved.parallelism_config, (ParallelismConfig{.dp_replicate_size = 2, .tp_size = 4}));
  EXPECT_EQ(resolved.resolved.gradient_accumulation_steps, 3);
  EXPECT_EQ(resolved.plugin.gradient_clipping, 2.0);
  EXPECT_EQ(resolved.plugin.sequence_parallelism, true);
  EXPECT_EQ(plan({.tp_degree = 2}).parallelism_config->tp_size, 2);
}

// --- the mesh --------------------------------------------------------------------------------------------------------

// Accelerate's default of context_parallel_size is 2.
TEST_F(MegatronLMPluginTest, WithoutDegreesAllRanksAreDataParallel) {
  EXPECT_EQ(mesh({}), std::nullopt);
  EXPECT_EQ(mesh({.use_distributed_optimizer = true}), std::nullopt);
}

TEST_F(MegatronLMPluginTest, TheRanksThatRemainAreDataParallel) {
  EXPECT_EQ(mesh({.tp_degree = 2, .context_parallel_size = 2}),
            (ParallelismConfig{.dp_replicate_size = 2, .cp_size = 2, .tp_size = 2}));
  EXPECT_EQ(mesh({.tp_degree = 2, .use_distributed_optimizer = true}),
            (ParallelismConfig{.dp_shard_size = 4, .tp_size = 2}));
  EXPECT_EQ(mesh({.expert_model_parallel_size = 8}), (ParallelismConfig{.ep_size = 8}));
  EXPECT_THAT(problems({.tp_degree = 2, .context_parallel_size = 3}),
              ElementsAre("megatron_lm_plugin: tp_degree 2 x context_parallel_size 3 x expert_model_parallel_size 1 do "
                          "not divide 8 ranks; expected a divisor of the number of ranks"));
  constexpr int kLarge = 1 << 30;
  EXPECT_THAT(problems({.tp_degree = kLarge, .expert_model_parallel_size = kLarge, .context_parallel_size = kLarge}),
              ElementsAre(HasSubstr("do not divide 8 ranks")));
}

// --- training --------------------------------------------------------------------------------------------------------

TEST_F(MegatronLMPluginTest, TheDistributedOptimizerShardsItsStateAndFsdpEverything) {
  EXPECT_FALSE(plan({}).resolved.sharding.has_value());
  const auto optimizer = *plan({.use_distributed_optimizer = true}).resolved.sharding;
  EXPECT_FALSE(optimizer.parameters || optimizer.gradients || optimizer.reshard_after_forward);
  EXPECT_TRUE(optimizer.autocasts && optimizer.aligned && optimizer.sync_module_states);
  EXPECT_EQ(optimizer.wrap.kind, WrapPolicy::Kind::kNone);
  for (const auto with_optimizer : {false, true}) {
    const auto all = *plan({.use_custom_fsdp = true, .use_distributed_optimizer = with_optimizer}).resolved.sharding;
    EXPECT_TRUE(all.parameters && all.gradients && all.reshard_after_forward);
    EXPECT_EQ(all.wrap.kind, WrapPolicy::Kind::kElements);
  }
}

TEST_F(MegatronLMPluginTest, SequenceParallelismRequiresTensorParallelism) {
  EXPECT_EQ(plan({.tp_degree = 2, .sequence_parallelism = true}).plugin.sequence_parallelism, true);
  const auto alone = plan({.sequence_parallelism = true});
  EXPECT_EQ(alone.plugin.sequence_parallelism, false);
  EXPECT_THAT(alone.resolved.warnings, ElementsAre(HasSubstr("it is ignored, because tp_degree is 1")));
}

// The fields of a plugin that Accelerate 1.15 creates without arguments and variables, in its order.
constexpr const char* kPythonDefaults =
    "tp_degree=1 pp_degree=1 use_custom_fsdp=false overlap_cpu_optimizer_d2h_h2d=false no_load_optim=false "
    "eod_mask_loss=false no_save_optim=false optimizer_cpu_offload=false use_precision_aware_optimizer=false "
    "decoder_last_pipeline_num_layers=None recompute_granularity=full recompute_method=uniform "
    "recompute_num_layers=1 attention_backend=true expert_model_parallel_size=1 context_parallel_size=2 "
    "attention_dropout=0 hidden_dropout=0 attention_softmax_in_fp32=true expert_tensor_parallel_size=1 "
    "calculate_per_token_loss=true use_rotary_position_embeddings=true num_micro_batches=1 gradient_clipping=1 "
    "sequence_parallelism=false recompute_activations=false use_distributed_optimizer=false "
    "pipeline_model_parallel_split_rank=None num_layers_per_virtual_pipeline_stage=None is_train_batch_min=true "
    "train_iters=None train_samples=None weight_decay_incr_style=constant start_weight_decay=None "
    "end_weight_decay=None lr_decay_style=linear lr_decay_iters=None lr_decay_samples=None lr_warmup_iters=None "
    "lr_warmup_samples=None lr_warmup_fraction=None min_lr=0 consumed_samples=None no_wd_decay_cond=None "
    "scale_lr_cond=None lr_mult=1 megatron_dataset_flag=false seq_length=None encoder_seq_length=None "
    "decoder_seq_length=None tensorboard_dir=None set_all_logging_options=false eval_iters=100 eval_interval=1000 "
    "return_logits=false custom_train_step_class=None custom_train_step_kwargs=None "
    "custom_model_provider_function=None custom_prepare_model_function=None "
    "custom_megatron_datasets_provider_function=None custom_get_batch_function=None custom_loss_function=None "
    "other_megatron_args=None";

// context_parallel_size is 2 there, and the program's own options are the defaults of two fields here.
TEST_F(MegatronLMPluginTest, DefaultsAreAccelerates) {
  std::map<std::string, std::string> theirs, ours;
  std::istringstream entries(kPythonDefaults);
  for (std::string entry; entries >> entry;)
    theirs[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
  theirs["context_parallel_size"] = "1";
  theirs["calculate_per_token_loss"] = theirs["num_micro_batches"] = "None";
  const MegatronLMPlugin plugin;
  for_each_field(plugin, [&](const Field& field, const auto&) {
    ours[field.name] = field.fallback == nullptr ? "None" : field.fallback;
  });
  EXPECT_EQ(ours, theirs);
  EXPECT_EQ(plan({}).plugin.gradient_clipping, 1.0);
  EXPECT_EQ(plan({}).plugin.attention_backend, true);
}

}  // namespace
}  // namespace accel::testing
