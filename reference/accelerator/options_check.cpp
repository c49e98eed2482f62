// Validates AcceleratorOptions together with the environment, before any communication. Each step adds to one list of
// problems, so the user sees all of them in one ConfigError. Explicit options win over the environment, except for
// gradient_accumulation_steps, where ACCELERATE_GRADIENT_ACCUMULATION_STEPS wins, as in accelerate/accelerator.py.
#include "reference/accelerator/options_check.hpp"

#include <fmt/ranges.h>

#include <iterator>

#include "reference/config/environment.hpp"
#include "reference/config/field_checks.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/files.hpp"
#include "reference/sharded/file_memory.hpp"

namespace accel {
namespace {

// Opens the offload folders before there is a model: a rank whose disk is missing must fail here, not inside `prepare`,
// where the other ranks would wait for it in a collective.
void check_offload(const ResolvedPlugin& plugin, std::vector<std::string>& problems) {
  if (!plugin.sharding) return;
  for (const auto& folder : {plugin.sharding->offload_parameters_path, plugin.sharding->offload_optimizer_path}) {
    if (folder.empty()) continue;
    try {
      const sharded::FileBackedMemory memory(folder);
    } catch (const FileError& error) {
      problems.push_back(fmt::format(
          "deepspeed_plugin: offload to nvme: {}; set the nvme_path to a folder that can be written to", error.what()));
    }
  }
}

using Problems = std::vector<std::string>;

void add(Problems& problems, Problems more) {
  problems.insert(problems.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
}

bool is_set(const ProfileKwargs& kwargs) {
  return !kwargs.activities.empty() || kwargs.schedule_option || kwargs.on_trace_ready || kwargs.record_shapes ||
         kwargs.profile_memory || kwargs.with_stack || kwargs.with_flops || kwargs.with_modules ||
         kwargs.output_trace_dir;
}
bool is_set(const std::optional<AORecipeKwargs>& kwargs) { return kwargs.has_value(); }
template <typename Kwargs>
bool is_set(const Kwargs& kwargs) {
  return kwargs != Kwargs();
}

template <typename Kwargs, typename KwargsField>
void set_from_handlers(const std::vector<KwargsHandler>& handlers, KwargsField& field, const char* name,
                       Problems& problems) {
  bool already_set = is_set(field);
  for (const auto& handler : handlers) {
    const auto* kwargs = std::get_if<Kwargs>(&handler);
    if (kwargs == nullptr) continue;
    if (already_set)
      problems.push_back(fmt::format("kwargs_handlers: {} is also set by another handler or field; set it once", name));
    field = *kwargs;
    already_set = true;
  }
}

// Source: accelerate/accelerator.py, Accelerator.__init__, which accepts one handler of each type.
void resolve_handlers(AcceleratorOptions& options, Problems& problems) {
  const auto& handlers = options.kwargs_handlers;
  set_from_handlers<DistributedDataParallelKwargs>(handlers, options.ddp_kwargs, "ddp_kwargs", problems);
  set_from_handlers<AutocastKwargs>(handlers, options.autocast_kwargs, "autocast_kwargs", problems);
  set_from_handlers<AORecipeKwargs>(handlers, options.ao_recipe_kwargs, "ao_recipe_kwargs", problems);
  set_from_handlers<GradScalerKwargs>(handlers, options.grad_scaler_kwargs, "grad_scaler_kwargs", problems);
  set_from_handlers<BackendsKwargs>(handlers, options.backends_kwargs, "backends_kwargs", problems);
  set_from_handlers<InitProcessGroupKwargs>(handlers, options.init_process_group_kwargs, "init_process_group_kwargs",
                                            problems);
  set_from_handlers<ProfileKwargs>(handlers, options.profile_kwargs, "profile_kwargs", problems);
}

// The environment is read only if the option is unset, as in accelerate/state.py.
void resolve_precision(AcceleratorOptions& options, Problems& problems) {
  const auto precision = options.mixed_precision ? options.mixed_precision : environment("ACCELERATE_MIXED_PRECISION");
  options.mixed_precision = precision.value_or("no");
  if (!is_mixed_precision(*options.mixed_precision)) {
    problems.push_back(fmt::format("mixed_precision: expected '{}', got '{}'", fmt::join(kMixedPrecisions, "', '"),
                                   *options.mixed_precision));
  }
  if (*options.mixed_precision == "fp8") {
    options.ao_recipe_kwargs = resolved(options.ao_recipe_kwargs.value_or(AORecipeKwargs{}), problems);
  } else if (options.ao_recipe_kwargs) {
    problems.push_back(
        fmt::format("ao_recipe_kwargs: requires mixed_precision 'fp8', got '{}'", *options.mixed_precision));
  }
}

// "auto" defers to the DeepSpeed plugin, which sets the steps later, in resolve_plugins.
GradientAccumulationPlugin plugin_of_steps(const AcceleratorOptions& options, Problems& problems) {
  GradientAccumulationPlugin plugin{.num_steps = options.gradient_accumulation_steps};
  const bool is_deepspeeds = environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") == "auto" && deepspeed_requested();
  try {
    if (const auto steps = is_deepspeeds ? std::nullopt : environment_int({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}))
      plugin.num_steps = steps;
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  return plugin;
}

// The number of steps may come from three places. Two explicit ones are an error, as in accelerate/accelerator.py.
void resolve_accumulation(AcceleratorOptions& options, Problems& problems) {
  auto& plugin = options.gradient_accumulation_plugin;
  if (plugin && options.gradient_accumulation_steps != 1) {
    problems.emplace_back(
        "gradient_accumulation_steps and gradient_accumulation_plugin exclude each other; set only the plugin's "
        "num_steps");
  }
  if (!plugin) plugin = plugin_of_steps(options, problems);
  if (plugin->num_steps.value_or(1) < 1)
    problems.push_back(fmt::format("gradient_accumulation_steps: expected 1 or more, got {}", *plugin->num_steps));
}

// The older option split_batches wins over the one in dataloader_config.
void resolve_data(AcceleratorOptions& options, Problems& problems) {
  try {
    // Set by `sim-run prove`, so that a program reads the same samples on every number of ranks.
    if (!options.split_batches) options.split_batches = environment_flag("ACCELERATE_SPLIT_BATCHES");
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  if (options.split_batches) options.dataloader_config.split_batches = *options.split_batches;
  if (options.dataloader_config.dispatch_batches.value_or(false) && !options.device_placement) {
    problems.emplace_back(
        "dispatch_batches: true requires device_placement: true, since batches are sent from device to device");
  }
  add(problems, problems_of(options.dataloader_config));
}

// Source: accelerate/utils/dataclasses.py, ProjectConfiguration.set_directories.
void resolve_project(AcceleratorOptions& options, Problems& problems) {
  if (options.project_dir) options.project_config.project_dir = *options.project_dir;
  if (options.project_config.logging_dir.empty())
    options.project_config.logging_dir = options.project_config.project_dir;
  add(problems, problems_of(options.project_config));
}

void check_gradients(const AcceleratorOptions& options, Problems& problems) {
  check_field("", Field{.name = "loss_weighting", .rule = {.choices = kLossWeightings}}, options.loss_weighting,
              problems);
  add(problems, problems_of_fields("gradient_guard: ", options.gradient_guard));
}

// Accelerate's other types belong to devices that LibTorch does not support here.
void check_rng_types(const AcceleratorOptions& options, Problems& problems) {
  for (const auto& type : options.rng_types) {
    if (type != "torch" && type != "cuda" && type != "generator")
      problems.push_back(fmt::format("rng_types: expected 'torch', 'cuda' or 'generator', got '{}'", type));
  }
}

// The ranks exist before the Accelerator, so these options can only be compared with them. Only env:// can be honoured:
// the launcher has already chosen the store.
void check_process_group(const InitProcessGroupKwargs& group, Problems& problems) {
  if (group.backend && *group.backend != "gloo" && *group.backend != "nccl") {
    problems.push_back(
        fmt::format("init_process_group_kwargs: backend: expected 'gloo' or 'nccl', got '{}'", *group.backend));
  }
  if (group.init_method && *group.init_method != "env://") {
    problems.push_back(
        fmt::format("init_process_group_kwargs: init_method: expected 'env://', got '{}'; launchers pass rank and "
                    "world size in the environment",
                    *group.init_method));
  }
  if (group.timeout && group.timeout->count() <= 0)
    problems.push_back(
        fmt::format("init_process_group_kwargs: timeout: expected more than 0 ms, got {}", group.timeout->count()));
}

// Debug mode creates a group, so its value must be known, and equal on all ranks, before the first collective.
void resolve_debug(AcceleratorOptions& options, Problems& problems) {
  try {
    if (!options.debug) options.debug = environment_flag("ACCELERATE_DEBUG_MODE").value_or(false);
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
}

// Inactive plugins are checked now too, not when they are selected: an error in the middle of a run is worse.
// Ranks that share a batch count once. A mesh that does not fit the world is reported elsewhere.
void complete_batch(ResolvedPlugin& plugin, const AcceleratorOptions& options, int world_size, Problems& problems) {
  const auto& mesh = options.parallelism_config;
  const auto ranks = mesh ? std::max<std::int64_t>(1, world_size / mesh->non_data_parallel_size()) : world_size;
  int steps = plugin.gradient_accumulation_steps.value_or(options.gradient_accumulation_plugin->num_steps.value_or(1));
  const auto problem = complete(plugin.batch_sizes, steps, static_cast<int>(ranks));
  if (!problem.empty()) problems.push_back("deepspeed_plugin: hf_ds_config: " + problem);
  if (plugin.batch_sizes.derives_steps) plugin.gradient_accumulation_steps = steps;
}

ResolvedPlugin resolve_deepspeed(const DeepSpeedPlugin& plugin, const AcceleratorOptions& options, int world_size,
                                 Problems& problems) {
  auto resolved = resolve(plugin, *options.mixed_precision, problems);
  complete_batch(resolved, options, world_size, problems);
  return resolved;
}

void check_deepspeed_plugins(const AcceleratorOptions& options, int world_size, Problems& problems) {
  for (const auto& [name, plugin] : options.deepspeed_plugins) {
    Problems own;
    check_offload(resolve_deepspeed(plugin, options, world_size, own), own);
    for (const auto& problem : own) problems.push_back(fmt::format("deepspeed_plugins '{}': {}", name, problem));
  }
}

// The plugin determines the mesh and how losses are weighted.
ResolvedPlugin resolve_megatron(AcceleratorOptions& options, int world_size, Problems& problems) {
  auto plan = resolve(*options.megatron_lm_plugin, world_size, problems);
  if (plan.loss_weighting == "accelerate" && options.loss_weighting == "exact") {
    problems.emplace_back(
        "megatron_lm_plugin: calculate_per_token_loss: false contradicts loss_weighting 'exact'; remove one of them");
  }
  options.loss_weighting = plan.loss_weighting.value_or(options.loss_weighting);
  options.parallelism_config = plan.parallelism_config;
  options.megatron_lm_plugin = std::move(plan.plugin);
  return std::move(plan.resolved);
}

// The order matters: the environment may create a plugin only if the program names none, conflicts are checked on what
// results, and the plugin's accumulation steps win over those that resolve_accumulation found.
ResolvedPlugin resolve_plugins(AcceleratorOptions& options, int world_size, Problems& problems) {
  ResolvedPlugin plugin;
  if (!options.fsdp_plugin && !options.deepspeed_plugin && options.deepspeed_plugins.empty() &&
      !options.megatron_lm_plugin) {
    if (fsdp_requested()) options.fsdp_plugin.emplace();
    if (deepspeed_requested()) options.deepspeed_plugin.emplace();
    if (megatron_lm_requested()) options.megatron_lm_plugin.emplace();
  }
  if (!options.parallelism_config) options.parallelism_config = parallelism_config_of_environment(problems);
  add(problems, problems_of_plugins(options));
  if (!options.deepspeed_plugin && !options.deepspeed_plugins.empty())
    options.deepspeed_plugin = options.deepspeed_plugins.begin()->second;
  if (options.fsdp_plugin) plugin = resolve(*options.fsdp_plugin, *options.mixed_precision, problems);
  if (options.megatron_lm_plugin) plugin = resolve_megatron(options, world_size, problems);
  if (options.parallelism_config)
    options.parallelism_config = resolved(*options.parallelism_config, problems, plugin.warnings);
  if (options.deepspeed_plugin) {
    auto warnings = std::move(plugin.warnings);
    plugin = resolve_deepspeed(*options.deepspeed_plugin, options, world_size, problems);
    plugin.warnings.insert(plugin.warnings.end(), warnings.begin(), warnings.end());
  }
  check_deepspeed_plugins(options, world_size, problems);
  check_offload(plugin, problems);
  auto& num_steps = options.gradient_accumulation_plugin->num_steps;
  // Source: accelerate/accelerator.py, _prepare_deepspeed.
  if (plugin.gradient_accumulation_steps && num_steps.value_or(1) != 1 &&
      num_steps != plugin.gradient_accumulation_steps) {
    plugin.warnings.push_back(fmt::format("gradient_accumulation_steps: {} is set, but the {} plugin's {} is used",
                                          *num_steps, options.megatron_lm_plugin ? "Megatron-LM" : "DeepSpeed",
                                          *plugin.gradient_accumulation_steps));
  }
  if (plugin.gradient_accumulation_steps) num_steps = plugin.gradient_accumulation_steps;
  return plugin;
}

// Sharded models keep float32 shards anyway, and store them flat.
void check_weights(const AcceleratorOptions& options, bool shards, Problems& problems) {
  if (options.master_weights && *options.mixed_precision != "bf16") {
    problems.push_back(
        fmt::format("master_weights: requires mixed_precision 'bf16', got '{}'", *options.mixed_precision));
  }
  if (options.master_weights && !options.autocast_kwargs.enabled)
    problems.emplace_back("master_weights: requires autocast_kwargs.enabled: true, which casts the vectors");
  const auto check = [&](bool is_set, const char* name, const char* reason) {
    if (is_set && shards)
      problems.push_back(fmt::format("{}: has no effect on sharded models, {}; remove it", name, reason));
  };
  check(options.master_weights, "master_weights", "whose optimizers step float32 shards already");
  check(options.channels_last, "channels_last", "whose parameters are parts of flat tensors");
}

}  // namespace

ResolvedOptions resolved(AcceleratorOptions options, int world_size) {
  Problems problems;
  resolve_handlers(options, problems);
  resolve_precision(options, problems);
  resolve_accumulation(options, problems);
  resolve_data(options, problems);
  add(problems, problems_of(options.grad_scaler_kwargs));
  add(problems, problems_of(options.ddp_kwargs));
  resolve_project(options, problems);
  add(problems, problems_of(options.profile_kwargs));
  check_gradients(options, problems);
  check_rng_types(options, problems);
  check_process_group(options.init_process_group_kwargs, problems);
  resolve_debug(options, problems);
  ResolvedPlugin plugin;
  try {
    // Reading a DeepSpeed or FSDP configuration throws ConfigError itself; it joins the other problems.
    plugin = resolve_plugins(options, world_size, problems);
    check_weights(options, plugin.sharding.has_value(), problems);
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  check_config(problems.empty(), "Accelerator: {}", listed(problems, "; "));
  return {std::move(options), std::move(plugin)};
}

ResolvedPlugin resolved_plugin(const DeepSpeedPlugin& plugin, const AcceleratorOptions& options, int world_size) {
  std::vector<std::string> problems;
  auto resolved = resolve_deepspeed(plugin, options, world_size, problems);
  check_config(problems.empty(), "{}", listed(problems, "; "));
  return resolved;
}

}  // namespace accel
