#include "reference/sharded/sharded_model.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/sharded/file_memory.hpp"
#include "reference/sharded/step.hpp"

namespace accel::sharded {
namespace {

std::optional<c10::ScalarType> scalar_type(std::optional<FloatType> type) {
  if (!type) return std::nullopt;
  return *type == FloatType::kFloat16 ? at::kHalf : *type == FloatType::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

std::vector<ShardPiece> pieces_of(const NamedTensors& state) {
  std::vector<ShardPiece> pieces;
  for (const auto& [name, tensor] : state)
    pieces.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, tensor.detach().reshape({-1})});
  return pieces;
}

// Where a parameter is divided: its flat buffer, and its place there.
struct Place {
  FlatParameter* flat;
  std::size_t index;
};

}  // namespace

struct ShardedModel::State {
  State(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options, c10::Device device,
        const bool& sync_gradients)
      : module(std::move(module)),
        groups(std::move(groups)),
        options(std::move(options)),
        device(device),
        step(this->options, sync_gradients),
        model(describe(this->module)) {
    plan = plan_units(model.description, this->options, this->groups.gathers.size());
    FlatParameterOptions flat_options;
    flat_options.param_dtype = scalar_type(this->options.param_dtype);
    flat_options.reduce_dtype = scalar_type(this->options.reduce_dtype);
    flat_options.frees_parameters = this->options.parameters;
    flat_options.syncs_from_first = this->options.sync_module_states;
    if (this->options.offload_parameters == OffloadDevice::kFiles)
      flat_options.shard_memory = std::make_shared<FileMemory>(this->options.offload_parameters_path);
    for (std::size_t index = 0; index < plan.units.size(); ++index)
      add_unit(plan.units[index], flat_options, /*is_root=*/index == 0);
    sync_buffers();
    surround();
  }

  void add_unit(const UnitPlan& unit_plan, FlatParameterOptions options_of_flats, bool is_root) {
    std::vector<std::unique_ptr<FlatParameter>> flats;
    for (const auto& flat_plan : unit_plan.flats) {
      std::vector<at::Tensor> parameters;
      for (const auto index : flat_plan.parameters) parameters.push_back(model.parameters[index]);
      options_of_flats.device = device;
      // An optimizer steps shards where they are: what moves it to the host moves them.
      const bool is_offloaded =
          options.offload_parameters != OffloadDevice::kNone || options.offload_optimizer != OffloadDevice::kNone;
      options_of_flats.shard_device = is_offloaded ? c10::Device(c10::kCPU) : device;
      if (!parameters.front().is_floating_point())
        options_of_flats.param_dtype = options_of_flats.reduce_dtype = std::nullopt;
      flats.push_back(
          std::make_unique<FlatParameter>(flat_plan, std::move(parameters), groups, options_of_flats, memory));
    }
    auto unit = std::make_shared<Unit>(unit_plan, std::move(flats), step, is_root);
    for (auto& flat : unit->flats) {
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto& parameter = flat->parameters()[i];
        places.emplace(parameter.unsafeGetTensorImpl(), Place{flat.get(), i});
        if (parameter.requires_grad())
          torch::autograd::impl::set_post_acc_grad_hooks(parameter, gradient_hook(unit, *flat, i));
      }
    }
    step.add(unit.get());
    units.push_back(std::move(unit));
  }

  void sync_buffers() {
    const c10::NoGradGuard no_grad;
    const auto dtype = scalar_type(options.buffer_dtype);
    for (auto& [name, buffer] : model.buffers) {
      if (buffer.is_meta()) buffer.set_data(at::zeros_like(buffer, at::TensorOptions().device(device)));
      buffer.set_data(buffer.to(device));
      if (dtype && buffer.is_floating_point()) buffer.set_data(buffer.to(*dtype));
      if (!options.sync_module_states) continue;
      if (groups.replicas) groups.replicas->broadcast(buffer).wait();
      groups.gathers.broadcast(buffer).wait();
    }
  }

  // Of the units but the model itself, whose calls are the prepared model's.
  void surround() {
    std::unordered_map<std::string, std::shared_ptr<Unit>> by_name;
    for (std::size_t index = 1; index < units.size(); ++index) by_name.emplace(plan.units[index].name, units[index]);
    for (const auto& [name, part] : model.modules) {
      if (const auto found = by_name.find(name); found != by_name.end()) calls.emplace_back(*part, found->second);
    }
    for (const auto& [name, part] : model.modules) parts.emplace_back(part);
  }

  // Names of parameters, each once, and buffers, with what they are to be filled with.
  [[nodiscard]] std::map<std::string, at::Tensor> assembled(const std::vector<ShardPiece>& pieces) const {
    std::vector<std::string> problems;
    std::map<std::string, std::string> first_name;
    std::map<std::string, at::Tensor> wholes;
    std::map<std::string, std::int64_t> missing;
    const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& sizes, const at::Tensor& like) {
      wholes.emplace(name, at::empty(sizes, at::TensorOptions().dtype(like.scalar_type())));
      missing.emplace(name, wholes.at(name).numel());
    };
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      expect(model.description.parameters[i].shape.name, model.description.parameters[i].shape.sizes,
             model.parameters[i]);
    for (const auto& [name, buffer] : model.buffers) expect(name, buffer.sizes().vec(), buffer);
    for (const auto& [name, tensor] : model.names) {
      if (!wholes.contains(name)) first_name.emplace(name, shape_of(tensor).name);
    }
    for (const auto& piece : pieces) {
      if (first_name.contains(piece.name)) continue;  // of a shared parameter, under another name
      const auto whole = wholes.find(piece.name);
      if (whole == wholes.end()) {
        problems.push_back(fmt::format("'{}' is not in the model", piece.name));
      } else if (whole->second.sizes() != c10::IntArrayRef(piece.sizes)) {
        problems.push_back(fmt::format("'{}' has sizes [{}], the model's are [{}]", piece.name,
                                       fmt::join(piece.sizes, ", "), fmt::join(whole->second.sizes(), ", ")));
        missing.at(piece.name) = 0;
      } else {
        whole->second.reshape({-1}).narrow(0, piece.part.begin, piece.part.size()).copy_(piece.values);
        missing.at(piece.name) -= piece.part.size();
      }
    }
    for (const auto& [name, elements] : missing) {
      if (elements > 0)
        problems.push_back(fmt::format("'{}' lacks {} of {} elements", name, elements, wholes.at(name).numel()));
      if (elements < 0) problems.push_back(fmt::format("'{}' has {} elements too many", name, -elements));
    }
    if (!problems.empty())
      throw CheckpointError(fmt::format("this is no state of the model: {}", fmt::join(problems, "; ")));
    return wholes;
  }

  [[nodiscard]] const ParameterShape& shape_of(const at::Tensor& parameter) const {
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      if (model.parameters[i].is_same(parameter)) return model.description.parameters[i].shape;
    }
    throw InternalError("a parameter without a description");
  }

  [[nodiscard]] const Place& place_of(const at::Tensor& parameter) const {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    check_argument(found != places.end(), "this tensor is no parameter that is divided over ranks");
    return found->second;
  }

  std::shared_ptr<torch::nn::Module> module;
  ShardGroups groups;
  ShardingOptions options;
  c10::Device device;
  MemoryAccount memory;
  Step step;
  DescribedModel model;
  ModelPlan plan;
  std::vector<std::shared_ptr<Unit>> units;
  std::unordered_map<const c10::TensorImpl*, Place> places;
  std::vector<SurroundedCalls> calls;
  std::vector<SurroundedParts> parts;
};

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options,
                           c10::Device device)
    : state_(
          std::make_shared<State>(std::move(module), std::move(groups), std::move(options), device, sync_gradients)) {}

ShardedModel::~ShardedModel() {
  for (const auto& parameter : state_->model.parameters) {
    if (parameter.requires_grad()) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

const ModelPlan& ShardedModel::plan() const { return state_->plan; }
const ShardGroups& ShardedModel::groups() const { return state_->groups; }
const ShardingOptions& ShardedModel::options() const { return state_->options; }
const MemoryAccount& ShardedModel::memory() const { return state_->memory; }
MemoryAccount& ShardedModel::memory() { return state_->memory; }

void ShardedModel::before_forward() {
  state_->step.begin_forward();
  for (auto& unit : state_->units) unit->was_run = false;
  state_->units.front()->before_forward();
}

void ShardedModel::after_forward(std::vector<at::Tensor>& outputs) { state_->units.front()->after_forward(outputs); }

void ShardedModel::explain(const std::exception& error) const {
  const auto missed =
      std::find_if(state_->units.begin(), state_->units.end(), [](const auto& unit) { return !unit->was_run; });
  if (missed == state_->units.end()) return;
  const std::string message = error.what();
  throw StateError(
      fmt::format("{}; the unit '{}' ({}) had not been called by then: its parameters are there only in accel::call, "
                  "not in its forward",
                  message.substr(0, message.find('\n')), (*missed)->name, (*missed)->class_name));
}

at::Tensor ShardedModel::cast_input(const at::Tensor& tensor) const {
  return tensor.is_floating_point() ? tensor.to(*scalar_type(state_->options.param_dtype)) : tensor;
}

void ShardedModel::show_shards() { state_->step.show_shards(); }
void ShardedModel::mark_stepped() { state_->step.mark_stepped(); }
bool ShardedModel::holds(const at::Tensor& parameter) const {
  return state_->places.contains(parameter.unsafeGetTensorImpl());
}

std::vector<at::Tensor> ShardedModel::gradients(const std::vector<at::Tensor>& parameters) const {
  std::set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) wanted.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> gradients;
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      std::vector<at::Tensor> parts;
      for (const auto& parameter : flat->parameters()) {
        if (wanted.contains(parameter.unsafeGetTensorImpl())) parts.push_back(parameter.grad());
      }
      const bool is_whole_flat = !state_->options.aligned && parts.size() == flat->parameters().size() &&
                                 flat->gradient_shard().is_alias_of(parts.front());
      if (is_whole_flat) parts = {flat->gradient_shard()};
      std::copy_if(parts.begin(), parts.end(), std::back_inserter(gradients),
                   [](const auto& part) { return part.numel() > 0; });
    }
  }
  return gradients;
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
      for (std::size_t i = 0; i < of_flat.size() && !are_parts; ++i)
        flat->parameters()[i].mutable_grad() = of_flat[i].defined() ? of_flat[i].to(state_->device) : at::Tensor();
    }
  }
}

void ShardedModel::gather_whole() { state_->step.gather_stored(); }

void ShardedModel::release_whole() { show_shards(); }

void ShardedModel::release_whole(const Group& world, int modified_on) {
  const c10::NoGradGuard no_grad;
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

NamedTensors ShardedModel::full_state() {
  const c10::NoGradGuard no_grad;
  show_shards();
  const bool is_first = state_->groups.gathers.rank() == 0 && state_->groups.is_first_copy();
  std::unordered_map<const c10::TensorImpl*, at::Tensor> values;
  const auto keep = [&](const at::Tensor& tensor) {
    if (is_first)
      values.emplace(tensor.unsafeGetTensorImpl(),
                     tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  };
  for (auto& unit : state_->units) {
    unit->gather_stored();
    for (const auto& flat : unit->flats) {
      for (const auto& parameter : flat->parameters()) keep(parameter);
    }
    unit->release();
  }
  for (const auto index : state_->plan.ignored) keep(state_->model.parameters[index]);
  for (const auto& [name, buffer] : state_->model.buffers) keep(buffer);
  NamedTensors state;
  for (const auto* list : {&state_->model.names, &state_->model.buffers}) {
    for (const auto& [name, tensor] : *list) {
      if (is_first) state.emplace_back(name, values.at(tensor.unsafeGetTensorImpl()));
    }
  }
  return state;
}

at::Tensor ShardedModel::whole_of(const at::Tensor& parameter, const at::Tensor& part) const {
  const c10::NoGradGuard no_grad;
  const auto& [flat, index] = state_->place_of(parameter);
  const auto& layout = flat->layout();
  const auto place = layout.part_in_shard(index, flat->shard_index());
  check_argument(part.numel() == place.size(), "a part of {} elements; this rank holds {} of '{}'", part.numel(),
                 place.size(), layout.parameters()[index].name);
  // Only shards that hold some of it matter, but a gather is of equal sizes.
  auto shard = at::zeros({layout.shard_numel()}, part.options());
  shard.narrow(0, place.begin, place.size()).copy_(part.reshape({-1}));
  auto whole = at::empty({layout.padded_numel()}, part.options());
  state_->groups.gathers.all_gather_into(whole, shard).wait();
  const auto range = layout.range(index);
  return whole.narrow(0, range.begin, range.size()).clone().view(layout.parameters()[index].sizes);
}

const std::string& ShardedModel::name_of(const at::Tensor& parameter) const {
  const auto& [flat, index] = state_->place_of(parameter);
  return flat->layout().parameters()[index].name;
}

ShardPiece ShardedModel::piece_of(const at::Tensor& parameter, const at::Tensor& part) const {
  const auto& [flat, index] = state_->place_of(parameter);
  const auto& shape = flat->layout().parameters()[index];
  return {shape.name, shape.sizes, flat->layout().part(index, flat->shard_index()), part.detach().reshape({-1})};
}

at::Tensor ShardedModel::part_of(const at::Tensor& parameter, const at::Tensor& whole) const {
  const auto& [flat, index] = state_->place_of(parameter);
  const auto part = flat->layout().part(index, flat->shard_index());
  check_argument(whole.numel() == flat->layout().range(index).size(), "a tensor of {} elements; '{}' has {}",
                 whole.numel(), flat->layout().parameters()[index].name, flat->layout().range(index).size());
  return whole.reshape({-1}).narrow(0, part.begin, part.size()).clone();
}

std::vector<ShardPiece> ShardedModel::sharded_state() const {
  const c10::NoGradGuard no_grad;
  std::vector<ShardPiece> pieces;
  if (!state_->groups.is_first_copy()) return pieces;
  const auto copy = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto part = flat->layout().part(i, flat->shard_index()),
                   place = flat->layout().part_in_shard(i, flat->shard_index());
        const auto& shape = flat->layout().parameters()[i];
        if (part.size() > 0 || (shape.numel() == 0 && flat->shard_index() == 0))
          pieces.push_back({shape.name, shape.sizes, part, copy(flat->shard().narrow(0, place.begin, place.size()))});
      }
    }
  }
  if (state_->groups.gathers.rank() != 0) return pieces;
  const auto add_whole = [&](const std::string& name, const at::Tensor& tensor) {
    pieces.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, copy(tensor).reshape({-1})});
  };
  for (const auto index : state_->plan.ignored)
    add_whole(state_->model.description.parameters[index].shape.name, state_->model.parameters[index]);
  for (const auto& [name, buffer] : state_->model.buffers) add_whole(name, buffer);
  return pieces;
}

void ShardedModel::load_full_state(const NamedTensors& state) { load_sharded_state(pieces_of(state)); }

void ShardedModel::load_sharded_state(const std::vector<ShardPiece>& pieces) { prepare_load(pieces)(); }

std::function<void()> ShardedModel::prepare_load(const std::vector<ShardPiece>& pieces) {
  show_shards();
  return [this, wholes = state_->assembled(pieces)] {
    const c10::NoGradGuard no_grad;
    for (auto& unit : state_->units) {
      for (auto& flat : unit->flats) {
        for (std::size_t i = 0; i < flat->parameters().size(); ++i)
          flat->write_shard(i, wholes.at(flat->layout().parameters()[i].name));
      }
    }
    for (const auto index : state_->plan.ignored)
      state_->model.parameters[index].detach().copy_(wholes.at(state_->model.description.parameters[index].shape.name));
    for (const auto& [name, buffer] : state_->model.buffers) buffer.copy_(wholes.at(name));
  };
}

std::function<void()> ShardedModel::prepare_load(const NamedTensors& state) { return prepare_load(pieces_of(state)); }

}  // namespace accel::sharded
