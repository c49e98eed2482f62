#include "reference/precision/master_weights.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace accel {
namespace {

// Not set_data: on a change of dtype that drops the gradient accumulator, and with it DDP's hook. No backward pass runs
// between the two changes, so the accumulator never sees the other dtype.
void show(const at::Tensor& parameter, const at::Tensor& values) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
}

}  // namespace

MasterWeights::MasterWeights(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (parameter.scalar_type() != at::kFloat || parameter.dim() < 2) continue;
    auto master = parameter.detach().clone();
    auto weight = master.to(at::kBFloat16);
    parameter.set_data(weight);  // no backward has run yet: the accumulator will be one of bfloat16 gradients
    entries_.push_back({.parameter = parameter, .weight = std::move(weight), .master = std::move(master)});
  }
}

std::vector<at::Tensor> MasterWeights::masters() const {
  std::vector<at::Tensor> masters;
  for (const auto& entry : entries_) masters.push_back(entry.master);
  return masters;
}

at::Tensor MasterWeights::master_of(const at::Tensor& parameter) const {
  for (const auto& entry : entries_) {
    if (entry.parameter.is_same(parameter)) return entry.master;
  }
  return parameter;
}

void MasterWeights::show_masters() {
  for (auto& entry : entries_) {
    show(entry.parameter, entry.master);
    auto& gradient = entry.parameter.mutable_grad();
    entry.gradient = std::exchange(gradient, {});
    if (entry.gradient.defined()) gradient = entry.gradient.detach().to(at::kFloat);
  }
}

void MasterWeights::show_weights(bool masters_changed) {
  if (masters_changed) update_weights();
  for (auto& entry : entries_) {
    show(entry.parameter, entry.weight);
    entry.parameter.mutable_grad() = std::exchange(entry.gradient, {});
  }
}

void MasterWeights::update_weights() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (const auto& entry : entries_) weights.push_back(entry.weight);
  if (!weights.empty()) at::_foreach_copy_(weights, masters());
}

}  // namespace accel
