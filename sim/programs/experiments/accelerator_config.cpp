// Reads the `accelerator` section of an experiment. Keys are the names of Python's arguments, and nested mappings are
// its dataclasses. Wrong combinations are found here, with file and line, by the same functions that the Accelerator's
// constructor calls; otherwise every rank would report them once more, without a line.
#include "sim/programs/experiments/accelerator_config.hpp"

#include "reference/config/environment.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

template <typename Options>
void read_fields(YamlReader reader, Options& options) {
  reader.read(options);
  reader.finish_keys();
}

// For structs whose rules `problems_of` or `resolve` checks, including rules that involve several fields. Checking here
// as well would report a problem twice.
template <typename Options>
void read_fields_unchecked(YamlReader reader, Options& options) {
  reader.read_unchecked(options);
  reader.finish_keys();
}

// In Python comm_state_option is a dictionary inside DistributedDataParallelKwargs, hence the nested mapping.
void read_ddp(YamlReader reader, DistributedDataParallelKwargs& ddp) {
  // The nested reader is taken first: read_fields_unchecked consumes `reader` and reports the keys that are left.
  auto power_sgd = reader.mapping("comm_state_option");
  read_fields_unchecked(std::move(reader), ddp);
  read_fields_unchecked(std::move(power_sgd), ddp.comm_state_option);
}

// A recipe name sets defaults for all fields of the config; keys beside it override single fields, so it is read first.
AORecipeKwargs read_float8(YamlReader reader) {
  AORecipeKwargs kwargs;
  auto config = reader.mapping("config");
  if (reader.has("config")) {
    kwargs.config.emplace();
    if (const auto recipe = config.optional<std::string>("recipe_name")) {
      try {
        kwargs.config = Float8LinearConfig::from_recipe_name(*recipe);
      } catch (const ConfigError& error) {
        config.problem("recipe_name", error.what());
      }
    }
    read_fields(std::move(config), *kwargs.config);
  }
  read_fields(std::move(reader), kwargs);
  return kwargs;
}

// A single dtype sets all dtypes that the FSDP version has: version 2 has no buffer dtype. If the file does not set
// the version, the launcher's variable does. Source: accelerate/utils/dataclasses.py, set_mixed_precision.
std::optional<MixedPrecisionPolicy> read_precision_policy(YamlReader& reader,
                                                          const FullyShardedDataParallelPlugin& plugin) {
  MixedPrecisionPolicy policy;
  if (reader.has_mapping("mixed_precision_policy")) {
    read_fields(reader.mapping("mixed_precision_policy"), policy);
    return policy;
  }
  const auto is_version_2 = plugin.fsdp_version ? *plugin.fsdp_version == 2 : environment("FSDP_VERSION") == "2";
  policy.param_dtype = policy.reduce_dtype =
      reader.optional<std::string>("mixed_precision_policy", nullptr, "a dtype, or a mapping of dtypes");
  if (!policy.param_dtype) return std::nullopt;
  if (!is_version_2) policy.buffer_dtype = policy.param_dtype;
  return policy;
}

FullyShardedDataParallelPlugin read_fsdp(YamlReader reader) {
  FullyShardedDataParallelPlugin plugin;
  reader.read_unchecked(plugin);
  plugin.mixed_precision_policy = read_precision_policy(reader, plugin);
  reader.finish_keys();
  return plugin;
}

DeepSpeedPlugin read_deepspeed(YamlReader reader) {
  DeepSpeedPlugin plugin;
  read_fields_unchecked(std::move(reader), plugin);
  return plugin;
}

// Reports the problems that the Accelerator's constructor would find, at the line of `key`.
void note(YamlReader& reader, const char* key, const std::vector<std::string>& problems) {
  for (const auto& problem : problems) reader.problem(key, problem);
}

// An absent section leaves the plugin empty, and an empty section enables it with its defaults, as in Python.
template <typename Plugin>
void read_plugin(YamlReader& reader, const char* key, Plugin (*read)(YamlReader), const std::string& mixed_precision,
                 std::optional<Plugin>& plugin) {
  auto mapping = reader.mapping(key);
  if (!reader.has(key)) return;
  plugin = read(std::move(mapping));
  std::vector<std::string> problems;
  resolve(*plugin, mixed_precision, problems);
  note(reader, key, problems);
}

// The plugins' defaults depend on mixed_precision, which the launcher's variable may set instead of the file.
void read_plugins(YamlReader& reader, AcceleratorOptions& options) {
  const auto precision = options.mixed_precision.value_or(environment("ACCELERATE_MIXED_PRECISION").value_or("no"));
  read_plugin(reader, "fsdp_plugin", read_fsdp, precision, options.fsdp_plugin);
  read_plugin(reader, "deepspeed_plugin", read_deepspeed, precision, options.deepspeed_plugin);
  note(reader, "fsdp_plugin", problems_of_plugins(options));
}

void read_accumulation(YamlReader& reader, AcceleratorOptions& options) {
  auto mapping = reader.mapping("gradient_accumulation_plugin");
  if (!reader.has("gradient_accumulation_plugin")) return;
  read_fields(std::move(mapping), options.gradient_accumulation_plugin.emplace());
  if (options.gradient_accumulation_steps != 1)
    reader.problem("gradient_accumulation_steps",
                   "cannot be combined with gradient_accumulation_plugin; set num_steps of the plugin instead");
}

}  // namespace

void read_accelerator(YamlReader reader, AcceleratorOptions& options) {
  reader.read(options);
  read_accumulation(reader, options);
  read_fields(reader.mapping("autocast_kwargs"), options.autocast_kwargs);
  read_fields_unchecked(reader.mapping("grad_scaler_kwargs"), options.grad_scaler_kwargs);
  note(reader, "grad_scaler_kwargs", problems_of(options.grad_scaler_kwargs));
  auto float8 = reader.mapping("ao_recipe_kwargs");
  if (reader.has("ao_recipe_kwargs")) {
    options.ao_recipe_kwargs = read_float8(std::move(float8));
    std::vector<std::string> problems;
    resolved(*options.ao_recipe_kwargs, problems);
    note(reader, "ao_recipe_kwargs", problems);
  }
  read_fields(reader.mapping("backends_kwargs"), options.backends_kwargs);
  read_fields(reader.mapping("gradient_guard"), options.gradient_guard);
  read_ddp(reader.mapping("ddp_kwargs"), options.ddp_kwargs);
  note(reader, "ddp_kwargs", problems_of(options.ddp_kwargs));
  auto mesh = reader.mapping("parallelism_config");
  if (reader.has("parallelism_config")) read_fields(std::move(mesh), options.parallelism_config.emplace());
  read_plugins(reader, options);
  reader.finish_keys();
}

void read_dataloader(YamlReader reader, DataLoaderConfiguration& config) { read_fields(std::move(reader), config); }

void read_pipeline(YamlReader reader, PipelineOptions& options) {
  reader.read(Field{"schedule"}, options.schedule);
  reader.read(Field{"micro_batches", at_least_one}, options.micro_batches);
  reader.read(Field{"stages_per_rank", at_least_one}, options.stages_per_rank);
  reader.read(Field{"split_points"}, options.split_points);
  reader.read(Field{"recompute"}, options.recompute);
  reader.read(Field{"send_capacity", at_least_zero}, options.send_capacity);
  reader.finish_keys();
}

}  // namespace accel::programs
