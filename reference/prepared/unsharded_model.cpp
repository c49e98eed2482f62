// Checkpoints and memory of models whose parameters are complete on every rank. The communication of replicated models
// is in DistributedDataParallel.
#include "reference/prepared/unsharded_model.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/parallel/backward_pass.hpp"
#include "reference/precision/master_weights.hpp"

namespace accel {

NamedTensors UnshardedModel::full_state(std::optional<at::ScalarType>) {
  auto state = weights();
  for (auto& [name, tensor] : state) tensor = tensor.detach().cpu();
  return state;
}

at::Tensor UnshardedModel::cast_input(const at::Tensor& tensor) const {
  return tensor.dim() == 4 ? tensor.contiguous(at::MemoryFormat::ChannelsLast) : tensor;
}

void UnshardedModel::before_step() {
  if (options().masters) options().masters->show_masters();
}

void UnshardedModel::after_step(bool has_stepped) {
  if (options().masters) options().masters->show_weights(has_stepped);
}

NamedTensors UnshardedModel::own_weights() {
  auto state = checkpoint::state_dict_of(*module());
  if (const auto& masters = options().masters) {
    masters->adopt_edits();
    for (auto& [name, tensor] : state) tensor = masters->master_of(tensor);
  }
  return state;
}

NamedTensors UnshardedModel::weights() { return layouts().complete(own_weights()); }

// All checks happen here, before anything is changed; the returned function only copies and cannot fail.
std::function<void()> UnshardedModel::prepare_load(const std::string& what,
                                                   const std::map<std::string, StoredWeight>& weights_by_name) {
  const auto own = own_weights();
  const auto parts = layouts().parts_of(what, own, weights_by_name);
  return [loads = checkpoint::matched(what, own, parts, /*strict=*/true), masters = options().masters] {
    for (const auto& [tensor, saved] : loads) saved.load_into(tensor.detach());
    if (masters) masters->update_weights();
  };
}

std::vector<std::int64_t> UnshardedModel::gradient_sizes(const at::Tensor& parameter, const Value&) const {
  return parameter.sizes().vec();
}

void UnshardedModel::load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value&) {
  for (const auto& item : module()->named_parameters()) {
    if (const auto found = gradients.find(item.key()); found != gradients.end()) {
      auto parameter = item.value();
      parameter.mutable_grad() = found->second.to(parameter.device(), parameter.scalar_type());
    }
  }
}

// Unsharded memory is counted on demand, since nothing allocates and frees it during a step.
sharded::MemoryAccount UnshardedModel::memory_account() {
  using Kind = sharded::MemoryKind;
  auto account = activations_;
  if (const auto& masters = options().masters) {
    for (const auto& master : masters->masters())
      account.add(Kind::kParameters, static_cast<std::int64_t>(master.nbytes()));
  }
  for (const auto& parameter : unique_tensors(module()->parameters())) {
    account.add(Kind::kParameters, static_cast<std::int64_t>(parameter.nbytes()));
    if (parameter.grad().defined()) account.add(Kind::kGradients, static_cast<std::int64_t>(parameter.grad().nbytes()));
  }
  return account;
}

void ReplicatedModel::retire() {
  UnshardedModel::retire();
  ddp_->end();
  if (experts_) experts_->end();
}

void ReplicatedModel::before_forward() {
  ddp_->before_forward();
  if (experts_) experts_->before_forward();
}

bool ReplicatedModel::after_forward(std::vector<at::Tensor>& outputs) {
  const bool has_replaced = ddp_->after_forward(outputs);
  return (experts_ && experts_->after_forward(outputs)) || has_replaced;
}

// The restore functions hold the DDP wrappers, so they may run after the model's handle is gone.
GradientSync::Restore ReplicatedModel::override_sync(Override override) {
  const auto before = ddp_->sync_flags;
  for (auto* ddp : {ddp_.get(), experts_.get()}) {
    if (ddp == nullptr) continue;
    if (override == Override::kSuspended)
      ddp->sync_flags.backward = false;
    else
      ddp->synchronize_next_backward();
  }
  return [ddp = ddp_, experts = experts_, before, override] {
    for (auto* own : {ddp.get(), experts.get()}) {
      if (own == nullptr) continue;
      if (override == Override::kSuspended)
        own->sync_flags.backward = before.backward;
      else
        own->sync_flags = before;
    }
  };
}

// One backward pass brings the gradients that have added up, so that the reducer averages them.
void ReplicatedModel::end_micro_batches() {
  std::exchange(end_suspension_, {})();
  if (!synchronizes()) return;
  NamedTensors unused;
  for (const auto& item : module()->named_parameters()) {
    if (item.value().requires_grad() && !item.value().grad().defined()) unused.emplace_back(item.key(), item.value());
  }
  check_state(
      unused.empty() || ddp_->num_replicas() == 1,
      "train_pipeline: the backward passes gave {} parameters no gradient, such as '{}', so that replicas cannot "
      "average them; use every parameter that requires a gradient, or freeze it (requires_grad_(false))",
      unused.size(), unused.empty() ? "" : unused.front().first);
  const auto restore = override_sync(Override::kNextBackward);
  deliver_gradients(unique_tensors(module()->parameters()));
  restore();
  for (auto& [name, parameter] : unused) parameter.mutable_grad().reset();
  // As after the forward of a step that synchronizes: the next one begins with the first rank's buffers.
  for (auto* own : {ddp_.get(), experts_.get()}) {
    if (own != nullptr) own->sync_flags.forward = true;
  }
}

DistributedDataParallel* ReplicatedModel::joinable() const {
  check_state(!layouts().has_divided_layers() && layouts().stages() == nullptr,
              "join_uneven_inputs: a rank without a batch cannot repeat the collectives of tensor-parallel and "
              "expert-parallel layers and of pipelines; use even batches");
  return ddp_->trains() ? ddp_.get() : nullptr;
}

UnaveragedGradients ReplicatedModel::take_unaveraged() {
  ddp_->check_complete("optimizer.step");
  if (experts_) experts_->check_complete("optimizer.step");
  auto all = ddp_->take_unaveraged();
  if (!experts_) return all;
  auto of_experts = experts_->take_unaveraged();
  std::ranges::move(of_experts.bypassing, std::back_inserter(all.bypassing));
  std::ranges::move(of_experts.written, std::back_inserter(all.written));
  return all;
}

void ReplicatedModel::accept_gradients() {
  ddp_->accept_gradients();
  if (experts_) experts_->accept_gradients();
}

std::optional<GradientOrigin> ReplicatedModel::origin_of(const at::Tensor& parameter) const {
  const auto origin = ddp_->origin_of(parameter);
  return origin || !experts_ ? origin : experts_->origin_of(parameter);
}

Value ReplicatedModel::sync_state() const {
  auto state = ddp_->state_dict().as<Value::Dict>();
  if (experts_) state["experts"] = experts_->state_dict();
  return state;
}

// A checkpoint of a single process, which has no DDP, contains no buckets. Those of another layout, in which experts
// are divided or not, do not fit.
void ReplicatedModel::load_sync_state(const Value& state) {
  if (state.contains("experts") != (experts_ != nullptr)) return;
  if (state.contains("buckets")) ddp_->load_state_dict(state);
  if (experts_ && state.contains("experts")) experts_->load_state_dict(state.at("experts"));
}

void ReplicatedModel::load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) {
  UnshardedModel::load_gradients(gradients, sync_state);
  accept_gradients();
}

// With gradient_as_bucket_view the gradients are the buckets and have been counted already.
sharded::MemoryAccount ReplicatedModel::memory_account() {
  auto account = UnshardedModel::memory_account();
  for (const auto& parameter : unique_tensors(module()->parameters())) {
    if (parameter.requires_grad() && has_own_buckets_)
      account.add(sharded::MemoryKind::kBuckets, static_cast<std::int64_t>(parameter.nbytes()));
  }
  return account;
}

const char* ReplicatedModel::feature_needing_outputs() const {
  const auto* feature = UnshardedModel::feature_needing_outputs();
  return feature == nullptr && ddp_->needs_outputs() ? "find_unused_parameters or static_graph" : feature;
}

}  // namespace accel
