#include "reference/accelerator/accelerator_state.hpp"

#include <ATen/Context.h>
#include <fmt/ranges.h>

#include "reference/accelerator/options_check.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/plugins/deepspeed_file.hpp"
#include "reference/core/errors.hpp"
#include "reference/mesh/mesh.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

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

// A process alone, and ranks whose groups also communicate CPU tensors, can compute on CPUs although there are GPUs.
void use_cpu(RankContext& context) {
  if (context.device.is_cpu()) return;
  check_config(context.backend != "nccl",
               "Accelerator: cpu: the ranks were started over nccl, which does not communicate CPU tensors; start them "
               "with --cpu, or set ACCELERATE_USE_CPU=true");
  context.device = c10::Device(c10::kCPU);
  context.capture_graph = {};
}

}  // namespace

// The rank holds the states of its Accelerators weakly: their process groups must not live as long as the rank.
AcceleratorState::AcceleratorState() {
  std::erase_if(context_->accelerator_states, [](const auto& state) { return state.expired(); });
  if (!context_->accelerator_states.empty())
    shared_ = std::static_pointer_cast<Shared>(context_->accelerator_states.back().lock());
  check_state(shared_ != nullptr,
              "AcceleratorState: this rank has no Accelerator; create one, or use PartialState, which needs none");
}

AcceleratorState::AcceleratorState(AcceleratorOptions options, RankContext& context)
    : PartialState(context), shared_(std::make_shared<Shared>()) {
  auto resolved = accel::resolved(std::move(options), context.world_size);
  settings() = std::move(resolved.options);
  shared().plugin = std::move(resolved.plugin);
  if (settings().cpu) use_cpu(*context_);
  apply(settings().backends_kwargs, context_->device);
  if (const auto sizes = mesh_sizes()) check_mesh(*sizes, context_->world_size);
  context_->gradient_state.plugin = *settings().gradient_accumulation_plugin;
  // GradientState belongs to the rank, not to the Accelerator. A second Accelerator on the same rank must not inherit
  // the "inside an accumulation window" state that the first one left.
  context_->gradient_state.sync_gradients = true;
  context_->accelerator_states.push_back(shared_);
}

void AcceleratorState::select_deepspeed_plugin(const std::string& name) {
  settings().deepspeed_plugin = get_deepspeed_plugin(name);
  // A plugin brings its own accumulation steps, and one model may be prepared per selection.
  shared().plugin = resolved_plugin(*settings().deepspeed_plugin, settings(), num_processes());
  if (plugin().gradient_accumulation_steps) set_gradient_accumulation_steps(*plugin().gradient_accumulation_steps);
  shared().has_model_of_plugin = false;
  warn_of_plugin();
}

const DeepSpeedPlugin& AcceleratorState::get_deepspeed_plugin(const std::string& name) const {
  const auto found = settings().deepspeed_plugins.find(name);
  std::vector<std::string> names;
  for (const auto& [known, plugin] : settings().deepspeed_plugins) names.push_back(known);
  check_argument(found != settings().deepspeed_plugins.end(),
                 "deepspeed plugin '{}' does not exist; expected one of: {}", name, fmt::join(names, ", "));
  return found->second;
}

// "none" means that there is no file. Source: accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
std::optional<std::string> AcceleratorState::deepspeed_file() const {
  if (!settings().deepspeed_plugin) return std::nullopt;
  const auto file = settings().deepspeed_plugin->hf_ds_config ? settings().deepspeed_plugin->hf_ds_config
                                                              : environment("ACCELERATE_DEEPSPEED_CONFIG_FILE");
  return file == "none" ? std::nullopt : file;
}

void AcceleratorState::warn_of_plugin() const {
  if (!is_main_process()) return;
  for (const auto& warning : plugin().warnings) warn_once(*context_, warning);
  for (const auto& warning : unused_variables()) warn_once(*context_, warning);
  const auto file = deepspeed_file();
  if (!file) return;
  const auto keys = ignored_keys(*file);
  if (!keys.empty())
    warn_once(*context_, fmt::format("{}: these keys have no effect in accel: {}", *file, fmt::join(keys, ", ")));
}

// Plugins win over the backend, as in accelerate/state.py.
DistributedType AcceleratorState::distributed_type() const {
  if (plugin().steps_in_backward) return DistributedType::kDeepSpeed;
  if (settings().fsdp_plugin) return DistributedType::kFsdp;
  if (settings().megatron_lm_plugin) return DistributedType::kMegatronLm;
  return PartialState::distributed_type();
}

int AcceleratorState::data_parallel_shard_rank() const { return index_along(kShardAxis, "data_parallel_shard_rank"); }
int AcceleratorState::context_parallel_rank() const { return index_along(kContextAxis, "context_parallel_rank"); }
int AcceleratorState::sequence_parallel_rank() const { return index_along(kSequenceAxis, "sequence_parallel_rank"); }
int AcceleratorState::tensor_parallel_rank() const { return index_along(kTensorAxis, "tensor_parallel_rank"); }
int AcceleratorState::expert_parallel_rank() const { return index_along(kExpertAxis, "expert_parallel_rank"); }

int AcceleratorState::index_along(std::size_t axis, const char* name) const {
  check_state(parallelism_config().has_value(), "{}: there is no mesh; set parallelism_config", name);
  return mesh_sizes() ? mesh_of(*mesh_sizes()).coordinate(process_index(), axis) : 0;
}

std::optional<ParallelismConfig> AcceleratorState::mesh_sizes() const {
  return parallelism_config() == ParallelismConfig{} ? std::nullopt : parallelism_config();
}

int AcceleratorState::gradient_accumulation_steps() const {
  return context_->gradient_state.plugin.num_steps.value_or(1);
}

void AcceleratorState::set_gradient_accumulation_steps(int steps) {
  check_argument(steps >= 1, "gradient_accumulation_steps: expected 1 or more, got {}", steps);
  context_->gradient_state.plugin.num_steps = steps;
}

}  // namespace accel
