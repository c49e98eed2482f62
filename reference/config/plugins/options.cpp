// Checks of option structs that involve several fields. The rules of single fields are in accelerator_fields.hpp.
// Problems are returned and not thrown, so that the Accelerator reports all of them in one ConfigError.
#include "reference/config/plugins/options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/environment.hpp"
#include "reference/config/field_checks.hpp"
#include "reference/config/plugin_reader.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"

namespace accel {
namespace {

// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, PowerSGDState.__init__.
std::vector<std::string> problems_of(const PowerSGDOptions& options) {
  auto problems = problems_of_fields("ddp_kwargs: comm_state_option: ", options);
  if (options.start_powerSGD_iter < 2 && (options.use_error_feedback || options.warm_start)) {
    problems.push_back(
        fmt::format("ddp_kwargs: comm_state_option: start_powerSGD_iter: expected 2 or more with use_error_feedback or "
                    "warm_start, because buckets are rebuilt after the first step, got {}",
                    options.start_powerSGD_iter));
  }
  return problems;
}

TorchContextParallelConfig completed(TorchContextParallelConfig handler, std::vector<std::string>& problems) {
  PluginReader fields("parallelism_config: cp_handler", handler, problems);
  handler.cp_comm_strategy = fields.value<std::string>("cp_comm_strategy").value_or("allgather");
  return handler;
}

// Accelerate's launcher writes "None" where there is no length.
DeepSpeedSequenceParallelConfig completed(DeepSpeedSequenceParallelConfig handler, int sp_size,
                                          std::vector<std::string>& problems) {
  PluginReader fields("parallelism_config: sp_handler", handler, problems);
  if (fields.text("sp_seq_length") == "None") fields.remove("sp_seq_length");
  const bool has_length = fields.has("sp_seq_length");
  handler.sp_seq_length = fields.value<std::int64_t>("sp_seq_length");
  handler.sp_seq_length_is_variable = fields.value<bool>("sp_seq_length_is_variable").value_or(true);
  handler.sp_attn_implementation = fields.value<std::string>("sp_attn_implementation").value_or("sdpa");
  if (!*handler.sp_seq_length_is_variable && !has_length)
    fields.problem("sp_seq_length", "missing; sp_seq_length_is_variable: false requires a length");
  if (handler.sp_seq_length && *handler.sp_seq_length % sp_size != 0) {
    fields.problem("sp_seq_length", fmt::format("{} is not divisible by sp_size {}; expected a multiple of it",
                                                *handler.sp_seq_length, sp_size));
  }
  return handler;
}

}  // namespace

std::vector<std::string> problems_of(const DataLoaderConfiguration& config) {
  auto problems = problems_of_fields("dataloader_config: ", config);
  if (config.is_elastic() && !config.even_batches) {
    problems.emplace_back(
        "dataloader_config: order: elastic pads the last step and excludes even_batches: false; remove one of them");
  }
  return problems;
}

std::vector<std::string> problems_of(const GradScalerKwargs& kwargs) {
  return problems_of_fields("grad_scaler_kwargs: ", kwargs);
}

std::vector<std::string> problems_of(const DistributedDataParallelKwargs& kwargs) {
  auto problems = problems_of_fields("ddp_kwargs: ", kwargs);
  if (kwargs.comm_hook == "no" && (kwargs.comm_wrapper == "fp16" || kwargs.comm_wrapper == "bf16")) {
    problems.push_back(
        fmt::format("ddp_kwargs: comm_wrapper: '{}' requires a comm_hook; set comm_hook: {} to cast gradients",
                    kwargs.comm_wrapper, kwargs.comm_wrapper));
  }
  if (kwargs.comm_hook == "power_sgd" || kwargs.comm_hook == "batched_power_sgd") {
    for (auto& problem : problems_of(kwargs.comm_state_option)) problems.push_back(std::move(problem));
  }
  return problems;
}

// All plugins configure the same engine, so only one of them can be used.
std::vector<std::string> problems_of_plugins(const AcceleratorOptions& options) {
  std::vector<std::string> problems;
  if (options.deepspeed_plugin && !options.deepspeed_plugins.empty()) {
    problems.emplace_back(
        "deepspeed_plugin and deepspeed_plugins exclude each other; pass all plugins in deepspeed_plugins");
  }
  if (options.fsdp_plugin && (options.deepspeed_plugin || !options.deepspeed_plugins.empty())) {
    problems.emplace_back(
        "fsdp_plugin and deepspeed_plugin exclude each other; set only the one that should shard the model");
  }
  if (options.megatron_lm_plugin) {
    const auto check = [&](bool is_set, const char* name) {
      if (is_set)
        problems.push_back(fmt::format("megatron_lm_plugin and {} exclude each other; remove one of them", name));
    };
    check(options.fsdp_plugin.has_value(), "fsdp_plugin");
    check(options.deepspeed_plugin || !options.deepspeed_plugins.empty(), "deepspeed_plugin");
    check(options.parallelism_config.has_value(), "parallelism_config");
  }
  return problems;
}

std::vector<std::string> problems_of(const ProjectConfiguration& config) {
  std::vector<std::string> problems;
  if (config.total_limit && *config.total_limit < 1)
    problems.push_back(fmt::format("project_config: total_limit: expected 1 or more, got {}", *config.total_limit));
  if (config.iteration < 0)
    problems.push_back(fmt::format("project_config: iteration: expected 0 or more, got {}", config.iteration));
  if (config.automatic_checkpoint_naming && config.project_dir.empty())
    problems.emplace_back("project_config: automatic_checkpoint_naming requires a project_dir");
  return problems;
}

std::vector<std::string> problems_of(const ProfileKwargs& kwargs) {
  std::vector<std::string> problems;
  for (const auto& activity : kwargs.activities) {
    if (activity != "cpu" && activity != "cuda")
      problems.push_back(fmt::format("activities: '{}' is unknown; expected cpu or cuda", activity));
  }
  if (const auto& schedule = kwargs.schedule_option;
      schedule && (std::min({schedule->wait, schedule->warmup, schedule->repeat, schedule->skip_first}) < 0 ||
                   schedule->active <= 0)) {
    problems.push_back(
        fmt::format("schedule_option: wait {}, warmup {}, active {}, repeat {}, skip_first {}; expected active above "
                    "0 and the others not negative",
                    schedule->wait, schedule->warmup, schedule->active, schedule->repeat, schedule->skip_first));
  }
  if (kwargs.with_stack)
    problems.emplace_back("with_stack: true is unsupported, because it records Python stacks; remove it");
  if (kwargs.with_modules)
    problems.emplace_back("with_modules: true is unsupported, because it records TorchScript modules; remove it");
  return problems;
}

// --- the mesh -------------------------------------------------------------------------------------------------------

// As in Accelerate, the sizes are ignored unless ACCELERATE_USE_PARALLELISM_CONFIG is set.
std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems) {
  if (!environment_flag("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false)) return std::nullopt;
  ParallelismConfig config;
  PluginReader("parallelism_config", config, problems).read(config);
  return config;
}

// Source: accelerate/parallelism_config.py, __post_init__ and _validate_accelerator. check_mesh, which has the number
// of ranks, checks the sizes.
ParallelismConfig resolved(ParallelismConfig config, std::vector<std::string>& problems,
                           std::vector<std::string>& warnings) {
  for_each_backend(config, [&](const Field& field, const std::string& name) {
    check_field("parallelism_config: ", field, name, problems);
  });
  const auto drop_unused = [&](auto& handler, const char* axis, int size) {
    if (!handler || size > 1) return;
    warnings.push_back(fmt::format("parallelism_config: {}_handler: it is ignored, because {}_size is 1", axis, axis));
    handler.reset();
  };
  drop_unused(config.tp_handler, "tp", config.tp_size);
  drop_unused(config.cp_handler, "cp", config.cp_size);
  drop_unused(config.sp_handler, "sp", config.sp_size);
  if (config.tp_enabled()) config.tp_handler = config.tp_handler.value_or(TorchTensorParallelConfig{});
  if (config.cp_enabled())
    config.cp_handler = completed(config.cp_handler.value_or(TorchContextParallelConfig{}), problems);
  if (config.sp_enabled()) {
    config.sp_handler =
        completed(config.sp_handler.value_or(DeepSpeedSequenceParallelConfig{}), config.sp_size, problems);
  }
  if (config.tp_handler && config.tp_handler->enable_async_tp)
    warnings.emplace_back("parallelism_config: tp_handler: enable_async_tp: it is not supported, and ignored");
  return config;
}

}  // namespace accel
