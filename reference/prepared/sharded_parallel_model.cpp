#include "reference/prepared/sharded_parallel_model.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <utility>

#include "reference/checkpoint/module_state.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/sharded/file_memory.hpp"

namespace accel {
namespace {

// Whether gradients saved inside an accumulation window are shards, or complete and not yet reduced.
bool has_part_gradients(const Value& sync_state) {
  return sync_state.contains("part_gradients") && sync_state.at("part_gradients").as<bool>();
}

// Casts every tensor once: a tensor with several names (tied weights) must stay one tensor in the checkpoint.
NamedTensors cast_floating(NamedTensors state, at::ScalarType dtype) {
  std::map<const c10::TensorImpl*, at::Tensor> casts;
  for (auto& [name, tensor] : state) {
    if (!tensor.is_floating_point()) continue;
    auto& cast = casts[tensor.unsafeGetTensorImpl()];
    if (!cast.defined()) cast = tensor.to(dtype);
  }
  for (auto& [name, tensor] : state) {
    if (const auto cast = casts.find(tensor.unsafeGetTensorImpl()); cast != casts.end()) tensor = cast->second;
  }
  return state;
}

}  // namespace

// True in every case: hooks for the backward gathers may have replaced the outputs.
bool ShardedParallelModel::after_forward(std::vector<at::Tensor>& outputs) {
  model_->after_forward(outputs);
  return true;
}

GradientSync::Restore ShardedParallelModel::set_sync(bool on) {
  return [model = model_, before = std::exchange(model_->sync_gradients, on)] { model->sync_gradients = before; };
}

// Some strategies reduce in every backward, so that gradients never need complete memory. They ignore no_sync.
GradientSync::Restore ShardedParallelModel::override_sync(Override override) {
  if (override == Override::kNextBackward) return set_sync(true);
  return model_->options().reduces_always ? Restore() : set_sync(false);
}

DistributedDataParallel* ShardedParallelModel::joinable() const {
  throw StateError(
      "join_uneven_inputs: does not support sharded models, since a rank without a batch cannot repeat their gathers; "
      "use even batches");
}

// Only offloading to files needs its own memory. CPU offload places the shards, and with them the state, in CPU
// tensors.
std::shared_ptr<sharded::MemorySource> ShardedParallelModel::make_optimizer_memory() const {
  const auto& options = model_->options();
  if (options.offload_optimizer != OffloadDevice::kFiles) return nullptr;
  return std::make_shared<sharded::FileBackedMemory>(options.offload_optimizer_path);
}

void ShardedParallelModel::release_parameters(const Group& world, std::optional<int> modified_on) {
  if (modified_on)
    model_->release_full_parameters(world, *modified_on);
  else
    model_->release_full_parameters();
}

// Every tensor-parallel peer of the main process takes part in putting the parts together.
NamedTensors ShardedParallelModel::complete_state() {
  if (!layouts().has_divided_layers() && layouts().stages() == nullptr) return model_->full_state();
  auto own = model_->full_state(/*on_every_peer=*/true);
  const auto& replicas = model_->groups().replicas;
  if (model_->groups().gathers.rank() != 0 || (replicas && replicas->rank() != 0)) return {};
  auto state = layouts().complete(std::move(own));
  return model_->groups().peer == 0 ? state : NamedTensors();
}

NamedTensors ShardedParallelModel::full_state(std::optional<at::ScalarType> sharded_dtype) {
  auto state = complete_state();
  return sharded_dtype ? cast_floating(std::move(state), *sharded_dtype) : state;
}

// Tensors are read completely here. The model keeps only this rank's part of each when the result is called.
std::function<void()> ShardedParallelModel::prepare_load(const std::string& what,
                                                         const std::map<std::string, StoredWeight>& saved_weights) {
  auto weights = saved_weights;
  layouts().keep_own(checkpoint::state_dict_of(*module()), weights);
  NamedTensors complete;
  for (const auto& [name, saved] : weights) {
    const auto* divided = layouts().of_layer(name);
    check_checkpoint(
        divided == nullptr || saved.sizes == divided->layout.sizes,
        "{}: '{}' has sizes [{}], which are not those of the complete layer; build the model that was saved", what,
        name, fmt::join(saved.sizes, ", "));
    complete.emplace_back(name, divided == nullptr ? saved.load() : divided->part_of(saved.load()));
  }
  return model_->prepare_load(complete);
}

Value ShardedParallelModel::sync_state() const { return Value::Dict{{"part_gradients", model_->has_part_gradients()}}; }

// Under no_sync gradients accumulate unsharded, unless the strategy reduces in every backward. The checkpoint records
// which of the two was the case.
std::vector<std::int64_t> ShardedParallelModel::gradient_sizes(const at::Tensor& parameter,
                                                               const Value& sync_state) const {
  const auto* divided = layouts().find(parameter);
  const bool is_complete = divided == nullptr || !divided->layout.is_sharded();
  if (has_part_gradients(sync_state) || is_complete) return parameter.sizes().vec();
  return divided->layout.sizes_after(divided->layout.divisions.size() - 1);
}

void ShardedParallelModel::load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) {
  model_->load_gradients(gradients, has_part_gradients(sync_state));
}

}  // namespace accel
