#include "reference/accelerator/accelerator_state.hpp"

#include <ATen/Context.h>
#include <fmt/ranges.h>

#include "reference/accelerator/mesh_groups.hpp"
#include "reference/accelerator/options_check.hpp"
#include "reference/config/deepspeed_file.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/launch_keys.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Ignored by the simulator: it may stand in for any backend, and it reports a deadlock at once instead of waiting for
// a time-out.
void apply(const InitProcessGroupKwargs& kwargs, RankContext& context) {
  if (context.backend != "gloo" && context.backend != "nccl") return;
  check_config(
      !kwargs.backend || *kwargs.backend == context.backend,
      "init_process_group_kwargs: backend: the ranks were started over {}, not {}; start them with --backend {}",
      context.backend, kwargs.backend.value_or(""), kwargs.backend.value_or(""));
  if (kwargs.timeout) context.set_timeout(*kwargs.timeout);
}

void apply(const BackendsKwargs& kwargs, c10::Device device) {
  if (device.is_cpu()) return;
  auto& libraries = at::globalContext();
  if (kwargs.allow_tf32) {
    libraries.setAllowTF32CuBLAS(*kwargs.allow_tf32);
    libraries.setAllowTF32CuDNN(*kwargs.allow_tf32);
  }
  if (kwargs.cudnn_benchmark) libraries.setBenchmarkCuDNN(*kwargs.cudnn_benchmark);
  if (kwargs.cudnn_deterministic) libraries.setDeterministicCuDNN(*kwargs.cudnn_deterministic);
}

}  // namespace

AcceleratorState::AcceleratorState(AcceleratorOptions options, RankContext& context) : context_(&context) {
  auto resolved = accel::resolved(std::move(options));
  options_ = std::move(resolved.options);
  plugin_ = std::move(resolved.plugin);
  mixed_precision_ = *options_.mixed_precision;
  apply(options_.backends_kwargs, context_->device);
  // A mesh without any size is what a program has that sets none: data parallelism over all ranks.
  if (options_.parallelism_config == ParallelismConfig{}) options_.parallelism_config.reset();
  if (options_.parallelism_config) check_mesh(*options_.parallelism_config, context_->world_size);
  context_->gradient_state.plugin = *options_.gradient_accumulation_plugin;
  // GradientState belongs to the rank, not to the Accelerator. A second Accelerator on the same rank must not inherit
  // the "inside an accumulation window" state that the first one left.
  context_->gradient_state.sync_gradients = true;
}

// Not part of the constructor: group creation is collective, while every check in the constructor throws on all ranks
// before the first collective. Order: `training_.path` needs the size of the data-parallel group.
void AcceleratorState::join_data_parallel_group() {
  apply(options_.init_process_group_kwargs, *context_);  // before the groups of the mesh, which get its time-out
  data_parallel_ = make_data_parallel(*context_, plan_data_parallel(options_.parallelism_config, place_of(*context_)));
  training_.path = make_gradient_pipeline();
}

std::shared_ptr<GradientPipeline> AcceleratorState::make_gradient_pipeline() const {
  // The last argument is the number of ranks that read the same samples (tensor or sequence parallel). Weighted losses
  // divide by it, because each sample is counted once per such rank.
  return std::make_shared<GradientPipeline>(*context_, options_, context_->world_size / data_parallel_.size);
}

void AcceleratorState::select_deepspeed_plugin(const std::string& name) {
  options_.deepspeed_plugin = get_deepspeed_plugin(name);
  // A plugin brings its own accumulation steps, and one model may be prepared per selection.
  plugin_ = resolved_plugin(*options_.deepspeed_plugin, options_);
  if (plugin_.gradient_accumulation_steps) set_gradient_accumulation_steps(*plugin_.gradient_accumulation_steps);
  has_model_of_plugin_ = false;
  warn_of_plugin();
}

const DeepSpeedPlugin& AcceleratorState::get_deepspeed_plugin(const std::string& name) const {
  const auto found = options_.deepspeed_plugins.find(name);
  std::vector<std::string> names;
  for (const auto& [known, plugin] : options_.deepspeed_plugins) names.push_back(known);
  check_argument(found != options_.deepspeed_plugins.end(), "deepspeed plugin '{}' does not exist; expected one of: {}",
                 name, fmt::join(names, ", "));
  return found->second;
}

// "none" means that there is no file. Source: accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
std::optional<std::string> AcceleratorState::deepspeed_file() const {
  if (!options_.deepspeed_plugin) return std::nullopt;
  const auto file = options_.deepspeed_plugin->hf_ds_config ? options_.deepspeed_plugin->hf_ds_config
                                                            : environment("ACCELERATE_DEEPSPEED_CONFIG_FILE");
  return file == "none" ? std::nullopt : file;
}

void AcceleratorState::warn_of_plugin() const {
  if (!is_main_process()) return;
  for (const auto& warning : plugin_.warnings) warn_once(*context_, warning);
  for (const auto& warning : unused_variables()) warn_once(*context_, warning);
  const auto file = deepspeed_file();
  if (!file) return;
  const auto keys = ignored_keys(*file);
  if (!keys.empty())
    warn_once(*context_, fmt::format("{}: these keys have no effect in accel: {}", *file, fmt::join(keys, ", ")));
}

// Order matters: plugins win over the backend, as in accelerate/state.py. A single process without a launcher has the
// backend "none" and counts as kNo; one rank started by a launcher counts as distributed, as in Python.
DistributedType AcceleratorState::distributed_type() const {
  if (plugin_.steps_in_backward) return DistributedType::kDeepSpeed;
  if (options_.fsdp_plugin) return DistributedType::kFsdp;
  if (context_->backend == "none") return DistributedType::kNo;
  return context_->device.is_cpu() ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
}

int AcceleratorState::gradient_accumulation_steps() const {
  return context_->gradient_state.plugin.num_steps.value_or(1);
}

void AcceleratorState::set_gradient_accumulation_steps(int steps) {
  check_argument(steps >= 1, "gradient_accumulation_steps: expected 1 or more, got {}", steps);
  context_->gradient_state.plugin.num_steps = steps;
}

std::optional<Autocast::Options> AcceleratorState::autocast_options(const AutocastKwargs& kwargs) const {
  if (mixed_precision_ == "no") return std::nullopt;
  return Autocast::Options{.device = context_->device.type(),
                           .dtype = mixed_precision_ == "fp16" ? at::kHalf : at::kBFloat16,
                           .enabled = kwargs.enabled,
                           .cache_enabled = kwargs.cache_enabled};
}

}  // namespace accel
