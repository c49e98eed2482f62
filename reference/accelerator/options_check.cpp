#include "reference/accelerator/options_check.hpp"

#include <fmt/ranges.h>

#include <iterator>

#include "reference/config/environment.hpp"
#include "reference/config/parallelism_environment.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"
#include "reference/sharded/file_memory.hpp"

namespace accel {
namespace {

// Before there is a model: a rank whose disk is away should not keep the others waiting.
void check_offload(const ResolvedPlugin& plugin, std::vector<std::string>& problems) {
  if (!plugin.sharding) return;
  for (const auto& folder : {plugin.sharding->offload_parameters_path, plugin.sharding->offload_optimizer_path}) {
    if (folder.empty()) continue;
    try {
      const sharded::FileMemory memory(folder);
    } catch (const FileError& error) {
      problems.push_back(fmt::format("deepspeed_plugin: offload to nvme: {}", error.what()));
    }
  }
}

}  // namespace

ResolvedOptions resolved(AcceleratorOptions options) {
  ResolvedPlugin resolved_plugin;
  std::vector<std::string> problems;
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
        fmt::format("ao_recipe_kwargs: of mixed_precision 'fp8', which is '{}'", *options.mixed_precision));
  }

  GradientAccumulationPlugin plugin;
  if (options.gradient_accumulation_plugin) {
    if (options.gradient_accumulation_steps != 1) {
      problems.emplace_back(
          "gradient_accumulation_steps and gradient_accumulation_plugin exclude each other; give the plugin's "
          "num_steps");
    }
    plugin = *options.gradient_accumulation_plugin;
  } else {
    plugin.num_steps = options.gradient_accumulation_steps;
    const bool is_deepspeeds = environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") == "auto" && asks_for_deepspeed();
    try {
      if (const auto steps = is_deepspeeds ? std::nullopt : environment_int({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}))
        plugin.num_steps = steps;
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  }
  if (plugin.num_steps.value_or(1) < 1)
    problems.push_back(fmt::format("gradient_accumulation_steps: expected 1 or more, got {}", *plugin.num_steps));
  options.gradient_accumulation_plugin = plugin;

  if (options.split_batches) options.dataloader_config.split_batches = *options.split_batches;
  if (options.dataloader_config.dispatch_batches.value_or(false) && !options.device_placement) {
    problems.emplace_back("dispatch_batches: true needs device_placement: true, since batches travel over the devices");
  }
  const auto add = [&](std::vector<std::string> more) {
    problems.insert(problems.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
  };
  add(problems_of(options.dataloader_config));
  add(problems_of(options.grad_scaler_kwargs));
  add(problems_of(options.ddp_kwargs));
  if (options.project_dir) options.project_config.project_dir = *options.project_dir;
  if (options.project_config.logging_dir.empty())
    options.project_config.logging_dir = options.project_config.project_dir;
  add(problems_of(options.project_config));
  add(problems_of(options.profile_kwargs));
  if (options.loss_weighting != "accelerate" && options.loss_weighting != "exact") {
    problems.push_back(
        fmt::format("loss_weighting: expected 'accelerate' or 'exact', got '{}'", options.loss_weighting));
  }
  if (const auto limit = options.gradient_guard.skip_norm_above; limit && !(*limit > 0)) {
    problems.push_back(fmt::format("gradient_guard: skip_norm_above: expected a number above 0, got {}", *limit));
  }
  const auto& group = options.init_process_group_kwargs;
  if (group.backend && *group.backend != "gloo" && *group.backend != "nccl") {
    problems.push_back(
        fmt::format("init_process_group_kwargs: backend: expected 'gloo' or 'nccl', got '{}'", *group.backend));
  }
  if (group.init_method && *group.init_method != "env://") {
    problems.push_back(
        fmt::format("init_process_group_kwargs: init_method: expected 'env://', got '{}'; launchers tell ranks their "
                    "place by the environment",
                    *group.init_method));
  }
  if (group.timeout && group.timeout->count() <= 0)
    problems.push_back(
        fmt::format("init_process_group_kwargs: timeout: expected more than 0 ms, got {}", group.timeout->count()));
  try {
    if (!options.debug) options.debug = environment_flag("ACCELERATE_DEBUG_MODE").value_or(false);
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  try {
    if (!options.fsdp_plugin && !options.deepspeed_plugin && options.deepspeed_plugins.empty()) {
      if (asks_for_fsdp()) options.fsdp_plugin.emplace();
      if (asks_for_deepspeed()) options.deepspeed_plugin.emplace();
    }
    if (!options.parallelism_config) options.parallelism_config = parallelism_config_of_environment(problems);
    add(problems_of_plugins(options));
    if (!options.deepspeed_plugin && !options.deepspeed_plugins.empty())
      options.deepspeed_plugin = options.deepspeed_plugins.begin()->second;
    if (options.fsdp_plugin) resolved_plugin = resolve(*options.fsdp_plugin, *options.mixed_precision, problems);
    if (options.deepspeed_plugin)
      resolved_plugin = resolve(*options.deepspeed_plugin, *options.mixed_precision, problems);
    // The others are checked now, not when they are selected.
    for (const auto& [name, plugin] : options.deepspeed_plugins) {
      std::vector<std::string> own;
      check_offload(resolve(plugin, *options.mixed_precision, own), own);
      for (const auto& problem : own) problems.push_back(fmt::format("deepspeed_plugins '{}': {}", name, problem));
    }
    check_offload(resolved_plugin, problems);
    if (resolved_plugin.gradient_accumulation_steps)
      options.gradient_accumulation_plugin->num_steps = resolved_plugin.gradient_accumulation_steps;
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  check_config(problems.empty(), "Accelerator: {}", fmt::join(problems, "; "));
  return {std::move(options), std::move(resolved_plugin)};
}

ResolvedPlugin resolved_plugin(const DeepSpeedPlugin& plugin, const AcceleratorOptions& options) {
  std::vector<std::string> problems;
  auto resolved = resolve(plugin, *options.mixed_precision, problems);
  check_config(problems.empty(), "{}", fmt::join(problems, "; "));
  return resolved;
}

void check_mesh(const ParallelismConfig& mesh, int world_size) {
  std::vector<std::string> problems;
  const auto check_size = [&](const char* name, int size) {
    if (size < 1) problems.push_back(fmt::format("{}: expected 1 or more, got {}", name, size));
  };
  check_size("dp_replicate_size", mesh.dp_replicate_size);
  check_size("dp_shard_size", mesh.dp_shard_size);
  check_size("cp_size", mesh.cp_size);
  check_size("sp_size", mesh.sp_size);
  check_size("tp_size", mesh.tp_size);
  const auto size = std::int64_t{mesh.data_parallel_size()} * mesh.non_data_parallel_size();
  if (problems.empty() && size != world_size) {
    problems.push_back(fmt::format(
        "a mesh of {} x {} x {} x {} x {} = {} ranks (dp_replicate, dp_shard, cp, sp, tp), and there are {}",
        mesh.dp_replicate_size, mesh.dp_shard_size, mesh.cp_size, mesh.sp_size, mesh.tp_size, size, world_size));
  }
  if (mesh.cp_size > 1 && mesh.sp_size > 1) problems.emplace_back("cp_size and sp_size exclude each other");
  check_config(problems.empty(), "parallelism_config: {}", fmt::join(problems, "; "));
}

}  // namespace accel
