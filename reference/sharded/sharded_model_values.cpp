#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <set>
#include <unordered_map>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/sharded/sharded_model.hpp"
#include "reference/sharded/sharded_model_state.hpp"

// Values of a sharded model for checkpoints: full tensors, or parts per rank.
namespace accel::sharded {
namespace {

// A full tensor is the special case of one part that covers it, so both formats are loaded by the same code.
std::vector<TensorPart> parts_of(const NamedTensors& state) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : state)
    parts.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, tensor.detach().reshape({-1})});
  return parts;
}

// Fills full tensors from parts, and collects all problems (missing, unexpected, of other sizes) for one error
// message. It counts elements instead of tracking ranges: overlapping parts show up as too many elements.
class Assembly {
 public:
  void expect(const std::string& name, const std::vector<std::int64_t>& sizes, const at::Tensor& like) {
    full_views_.emplace(name, at::empty(sizes, at::TensorOptions().dtype(like.scalar_type())));
    missing_.emplace(name, full_views_.at(name).numel());
  }
  [[nodiscard]] bool expects(const std::string& name) const { return full_views_.contains(name); }

  void add(const TensorPart& part) {
    const auto whole = full_views_.find(part.name);
    if (whole == full_views_.end()) {
      problems_.push_back(fmt::format("'{}' is not in the model", part.name));
    } else if (whole->second.sizes() != c10::IntArrayRef(part.sizes)) {
      problems_.push_back(fmt::format("'{}' has sizes [{}], the model's are [{}]", part.name,
                                      fmt::join(part.sizes, ", "), fmt::join(whole->second.sizes(), ", ")));
      missing_.at(part.name) = 0;
    } else {
      whole->second.reshape({-1}).narrow(0, part.range.begin, part.range.size()).copy_(part.values);
      missing_.at(part.name) -= part.range.size();
    }
  }

  [[nodiscard]] std::map<std::string, at::Tensor> finish() && {
    for (const auto& [name, elements] : missing_) {
      if (elements > 0)
        problems_.push_back(fmt::format("'{}' lacks {} of {} elements", name, elements, full_views_.at(name).numel()));
      if (elements < 0) problems_.push_back(fmt::format("'{}' has {} elements too many", name, -elements));
    }
    if (!problems_.empty())
      throw CheckpointError(
          fmt::format("the state does not fit the model: {}; build the model that was saved", listed(problems_, "; ")));
    return std::move(full_views_);
  }

 private:
  std::map<std::string, at::Tensor> full_views_;
  std::map<std::string, std::int64_t> missing_;  // elements
  std::vector<std::string> problems_;
};

}  // namespace

std::map<std::string, at::Tensor> ShardedModel::State::assembled(const std::vector<TensorPart>& parts) const {
  Assembly assembly;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const auto& shape = model.description.parameters[i].shape;
    assembly.expect(shape.name, shape.sizes, model.parameters[i]);
  }
  for (const auto& [name, buffer] : model.buffers) assembly.expect(name, buffer.sizes().vec(), buffer);
  std::set<std::string> other_names;  // further names of shared parameters; their values come under the first name
  for (const auto& [name, tensor] : model.names) {
    if (!assembly.expects(name)) other_names.insert(name);
  }
  for (const auto& part : parts) {
    // A full state lists a shared parameter under all its names. Adding each would count its elements several times.
    if (!other_names.contains(part.name)) assembly.add(part);
  }
  return std::move(assembly).finish();
}

// Collective on every rank, but only the first one keeps values: one full copy of the model exists, in host memory.
// Gathering unit by unit bounds the device memory by the largest unit.
NamedTensors ShardedModel::full_state(bool on_every_peer) {
  const c10::NoGradGuard no_grad;
  show_shards();
  const auto& replicas = state_->groups.replicas;
  const bool is_first = state_->groups.gathers.rank() == 0 && (!replicas || replicas->rank() == 0) &&
                        (on_every_peer || state_->groups.peer == 0);
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
  // Ignored parameters and buffers are complete on every rank; no gather is needed.
  for (const auto index : state_->plan.ignored) keep(state_->model.parameters[index]);
  for (const auto& [name, buffer] : state_->model.buffers) keep(buffer);
  NamedTensors state;
  // A shared parameter appears under all of its names, as in Python's state_dict.
  for (const auto* list : {&state_->model.names, &state_->model.buffers}) {
    for (const auto& [name, tensor] : *list) {
      if (is_first) state.emplace_back(name, values.at(tensor.unsafeGetTensorImpl()));
    }
  }
  return state;
}

std::vector<std::pair<at::Tensor, DividedParameter>> ShardedModel::divided_parameters() const {
  const auto& groups = state_->groups;
  std::vector<std::pair<at::Tensor, DividedParameter>> divided;
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto& shape = flat->layout().parameters()[i];
        divided.emplace_back(flat->parameters()[i],
                             DividedParameter{.name = shape.name,
                                              .layout = {.sizes = shape.sizes,
                                                         .divisions = {{.axis = kShardAxis,
                                                                        .placement = flat->layout().placement(i),
                                                                        .index = flat->shard_index(),
                                                                        .num_parts = groups.gathers.size()}}},
                                              .groups = {groups.gathers},
                                              .writes_part = groups.is_primary_replica()});
      }
    }
  }
  return divided;
}

std::vector<TensorPart> ShardedModel::sharded_state() const {
  const c10::NoGradGuard no_grad;
  std::vector<TensorPart> parts;
  if (!state_->groups.is_primary_replica()) return parts;
  // A copy, because an asynchronous save writes the parts while the optimizer already changes the shards.
  const auto copy = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  for (const auto& unit : state_->units) {
    for (const auto& flat : unit->flats) {
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto part = flat->layout().part(i, flat->shard_index()),
                   place = flat->layout().part_in_shard(i, flat->shard_index());
        const auto& shape = flat->layout().parameters()[i];
        // An empty parameter has no part on any rank; the first one writes it, or loading would report it as missing.
        if (part.size() > 0 || (shape.numel() == 0 && flat->shard_index() == 0))
          parts.push_back({shape.name, shape.sizes, part, copy(flat->shard().narrow(0, place.begin, place.size()))});
      }
    }
  }
  // Values that are equal on all ranks are written once.
  if (state_->groups.gathers.rank() != 0) return parts;
  const auto add_whole = [&](const std::string& name, const at::Tensor& tensor) {
    parts.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, copy(tensor).reshape({-1})});
  };
  for (const auto index : state_->plan.ignored)
    add_whole(state_->model.description.parameters[index].shape.name, state_->model.parameters[index]);
  for (const auto& [name, buffer] : state_->model.buffers) add_whole(name, buffer);
  return parts;
}

// Every rank passes the full values; each keeps its part.
void ShardedModel::load_full_state(const NamedTensors& state) { load_sharded_state(parts_of(state)); }

void ShardedModel::load_sharded_state(const std::vector<TensorPart>& parts) { prepare_load(parts)(); }

std::function<void()> ShardedModel::prepare_load(const std::vector<TensorPart>& parts) {
  show_shards();
  // All checks happen in `assembled`. The caller can prepare several objects and change none if one of them fails.
  return [this, wholes = state_->assembled(parts)] {
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

std::function<void()> ShardedModel::prepare_load(const NamedTensors& state) { return prepare_load(parts_of(state)); }

}  // namespace accel::sharded
