#include "reference/sharded/sharded_model.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "reference/core/errors.hpp"
#include "reference/sharded/file_memory.hpp"
#include "reference/sharded/sharded_model_state.hpp"

// Connects plan and executor: builds the units of a ModelPlan, hooks them into the module's calls, and passes the
// model's own call to its root unit. Values for checkpoints are in sharded_model_values.cpp.
namespace accel::sharded {
namespace {

std::optional<c10::ScalarType> scalar_type(std::optional<FloatType> type) {
  if (!type) return std::nullopt;
  return *type == FloatType::kFloat16 ? at::kHalf : *type == FloatType::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace

ShardedModel::State::State(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options,
                           c10::Device device, const bool& sync_gradients)
    : module(std::move(module)),
      groups(std::move(groups)),
      options(std::move(options)),
      device(device),
      // `step` keeps references to both, so it must see this object's options, not the moved-from argument.
      step(this->options, sync_gradients, device),
      model(describe(this->module)) {
  this->options = with_defaults(std::move(this->options), !device.is_cpu());
  plan = plan_units(model.description, this->options, this->groups.gathers.size());
  if (!gathers_ahead(plan, this->options)) {
    this->options.prefetch = Prefetch::kNone;
    this->options.forward_prefetch = false;
  }
  FlatParameterOptions flat_options;
  flat_options.param_dtype = scalar_type(this->options.param_dtype);
  flat_options.reduce_dtype = scalar_type(this->options.reduce_dtype);
  flat_options.frees_parameters = this->options.parameters;
  flat_options.broadcasts_from_first_rank = this->options.sync_module_states;
  if (this->options.offload_parameters == OffloadDevice::kFiles)
    flat_options.shard_memory = std::make_shared<FileBackedMemory>(this->options.offload_parameters_path);
  for (std::size_t index = 0; index < plan.units.size(); ++index)
    add_unit(plan.units[index], flat_options, /*is_root=*/index == 0);
  sync_buffers();
  surround();
}

void ShardedModel::State::add_unit(const UnitPlan& unit_plan, FlatParameterOptions options_of_flats, bool is_root) {
  std::vector<std::unique_ptr<FlatParameter>> flats;
  for (const auto& flat_plan : unit_plan.flats) {
    std::vector<at::Tensor> parameters;
    for (const auto index : flat_plan.parameters) parameters.push_back(model.parameters[index]);
    options_of_flats.device = device;
    // An optimizer steps shards on their own device, so offloading the optimizer also moves the shards to the host.
    const bool is_offloaded =
        options.offload_parameters != OffloadDevice::kNone || options.offload_optimizer != OffloadDevice::kNone;
    options_of_flats.shard_device = is_offloaded ? c10::Device(c10::kCPU) : device;
    // Integers cannot be cast to the compute dtype without losing their values.
    if (!parameters.front().is_floating_point())
      options_of_flats.param_dtype = options_of_flats.reduce_dtype = std::nullopt;
    flats.push_back(std::make_unique<FlatParameter>(
        flat_plan, std::move(parameters), groups.groups_of(flat_plan.is_of_experts), options_of_flats, memory));
  }
  auto unit = std::make_shared<Unit>(unit_plan, std::move(flats), step, is_root);
  for (auto& flat : unit->flats) {
    for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
      const auto& parameter = flat->parameters()[i];
      // Post-accumulate: the hook needs the gradient with what earlier passes without synchronization added to it. Also
      // for frozen parameters, which the program may unfreeze.
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, gradient_hook(unit, *flat, i));
    }
  }
  step.add(unit.get());
  units.push_back(std::move(unit));
}

void ShardedModel::State::sync_buffers() {
  const c10::NoGradGuard no_grad;
  const auto dtype = scalar_type(options.buffer_dtype);
  for (auto& [name, buffer] : model.buffers) {
    // set_data, because the module holds the buffer in member variables that cannot be reassigned from here.
    if (buffer.is_meta()) buffer.set_data(at::zeros_like(buffer, at::TensorOptions().device(device)));
    buffer.set_data(buffer.to(device));
    if (dtype && buffer.is_floating_point()) buffer.set_data(buffer.to(*dtype));
    if (!options.sync_module_states) continue;
    // The same order as for parameters: first between replicas, then inside the shard group.
    const auto shared = groups.groups_of(/*is_of_experts=*/false);
    if (shared.replicas) shared.replicas->broadcast(buffer).wait();
    groups.gathers.broadcast(buffer).wait();
  }
}

// Hooks the units into their modules' calls, except the root, whose call is that of the prepared model. `parts` comes
// last: it only wraps children of a Sequential that are registered already.
void ShardedModel::State::surround() {
  std::unordered_map<std::string, std::shared_ptr<Unit>> by_name;
  for (std::size_t index = 1; index < units.size(); ++index) by_name.emplace(plan.units[index].name, units[index]);
  for (const auto& [name, part] : model.modules) {
    if (const auto found = by_name.find(name); found != by_name.end()) calls.emplace_back(*part, found->second);
  }
  for (const auto& [name, part] : model.modules) parts.emplace_back(part);
}

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options,
                           c10::Device device)
    : state_(
          std::make_shared<State>(std::move(module), std::move(groups), std::move(options), device, sync_gradients)) {}

ShardedModel::~ShardedModel() {
  // The module may outlive this object, and may be prepared again with hooks of another model.
  for (const auto& parameter : state_->model.parameters)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

const ModelPlan& ShardedModel::plan() const { return state_->plan; }
const ShardGroups& ShardedModel::groups() const { return state_->groups; }
const ShardingOptions& ShardedModel::options() const { return state_->options; }
const MemoryAccount& ShardedModel::memory() const { return state_->memory; }
MemoryAccount& ShardedModel::memory() { return state_->memory; }

// The root unit surrounds the model's call; was_run serves `explain` after an error.
void ShardedModel::before_forward() {
  state_->step.begin_forward();
  for (auto& unit : state_->units) unit->was_run = false;
  state_->units.front()->before_forward();
}

void ShardedModel::after_forward(std::vector<at::Tensor>& outputs) { state_->units.front()->after_forward(outputs); }

// A unit called directly instead of through accel::call computes with an empty part and fails in some kernel with a
// message about shapes. The first unit that was not called is most likely the culprit.
void ShardedModel::explain(const std::exception& error) const {
  const auto missed =
      std::find_if(state_->units.begin(), state_->units.end(), [](const auto& unit) { return !unit->was_run; });
  if (missed == state_->units.end()) return;
  const std::string message = error.what();
  throw StateError(
      fmt::format("{}; the unit '{}' ({}) had not been called by then: its parameters are only gathered in "
                  "accel::call; use accel::call instead of a direct call of its forward",
                  message.substr(0, message.find('\n')), (*missed)->name, (*missed)->class_name));
}

at::Tensor ShardedModel::cast_input(const at::Tensor& tensor) const {
  return tensor.is_floating_point() ? tensor.to(*scalar_type(state_->options.param_dtype)) : tensor;
}

void ShardedModel::begin_micro_batches() { state_->step.begin_hold(); }
void ShardedModel::end_micro_batches() { state_->step.end_hold(); }
void ShardedModel::show_shards() { state_->step.show_shards(); }
void ShardedModel::mark_stepped() { state_->step.mark_stepped(); }

std::vector<at::Tensor> ShardedModel::gradients(const std::vector<at::Tensor>& parameters) const {
  std::set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) wanted.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> gradients;
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      std::vector<at::Tensor> parts;
      std::size_t num_lacking = 0;
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto& parameter = flat->parameters()[i];
        if (wanted.contains(parameter.unsafeGetTensorImpl())) parts.push_back(parameter.grad());
        num_lacking += flat->lacks_gradient(i) ? 1 : 0;
      }
      // FSDP1 without use_orig_params takes norms of the flat gradient. The sum of squares must run over the same
      // elements in the same order to give the same bits. The alias check excludes gradients that the program has
      // replaced.
      const bool is_whole_flat = !state_->options.aligned && !parts.empty() &&
                                 parts.size() + num_lacking == flat->parameters().size() &&
                                 flat->gradient_shard().is_alias_of(parts.front());
      if (is_whole_flat) parts = {flat->gradient_shard()};
      // Empty parts are left out: they do not change a norm, but would add a kernel call each.
      std::copy_if(parts.begin(), parts.end(), std::back_inserter(gradients),
                   [](const auto& part) { return part.numel() > 0; });
    }
  }
  return gradients;
}

NamedTensors ShardedModel::take_written_gradients() {
  NamedTensors written;
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      const auto is_written = flat->take_written_gradients();
      for (std::size_t i = 0; i < is_written.size(); ++i) {
        if (is_written[i]) written.emplace_back(flat->layout().parameters()[i].name, flat->parameters()[i]);
      }
    }
  }
  return written;
}

bool ShardedModel::has_part_gradients() const {
  return std::any_of(state_->units.begin(), state_->units.end(), [](const auto& unit) {
    return std::any_of(unit->flats.begin(), unit->flats.end(),
                       [](const auto& flat) { return flat->has_part_gradients(); });
  });
}

void ShardedModel::load_gradients(const std::map<std::string, at::Tensor>& gradients, bool are_parts) {
  for (auto& unit : state_->units) {
    for (auto& flat : unit->flats) {
      std::vector<at::Tensor> of_flat;
      for (const auto& shape : flat->layout().parameters()) {
        const auto found = gradients.find(shape.name);
        of_flat.push_back(found == gradients.end() ? at::Tensor() : found->second);
      }
      if (std::none_of(of_flat.begin(), of_flat.end(), [](const auto& gradient) { return gradient.defined(); }))
        continue;
      if (are_parts) flat->load_part_gradients(of_flat);
      // Full gradients of a pass without reduction: the next pass accumulates on them.
      for (std::size_t i = 0; i < of_flat.size() && !are_parts; ++i)
        flat->parameters()[i].mutable_grad() = of_flat[i].defined() ? of_flat[i].to(state_->device) : at::Tensor();
      (void)flat->take_written_gradients();
    }
  }
}

void ShardedModel::dissolve() {
  state_->step.gather_stored();
  for (auto& parameter : state_->model.parameters) {
    parameter.mutable_grad().reset();
    parameter.set_data(parameter.detach().clone());
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  state_->parts.clear();
  state_->calls.clear();
}

void ShardedModel::gather_full_parameters() { state_->step.gather_stored(); }

void ShardedModel::release_full_parameters() { show_shards(); }

// Every rank already has full tensors, so it only needs the modified values and cuts its part from them.
void ShardedModel::release_full_parameters(const Group& world, int modified_on) {
  const c10::NoGradGuard no_grad;
  state_->step.finish_copies();  // before the shards change
  for (auto& unit : state_->units) {
    for (auto& flat : unit->flats) {
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        auto values = flat->parameters()[i].detach();
        if (values.numel() > 0) world.broadcast(values, modified_on).wait();
        flat->write_shard(i, values);
      }
    }
  }
  show_shards();
}

}  // namespace accel::sharded
