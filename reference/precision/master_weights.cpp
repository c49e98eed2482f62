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

bool is_convertible(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kFloat || at::isReducedFloatingType(parameter.scalar_type());
}

}  // namespace

// No backward has run yet, so set_data is safe: accumulators will be those of the new dtype.
MasterWeights::MasterWeights(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (!is_convertible(parameter)) continue;
    if (parameter.dim() < 2) {
      if (parameter.scalar_type() != at::kFloat) parameter.set_data(parameter.detach().to(at::kFloat));
      continue;
    }
    auto master = parameter.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    auto weight = master.to(at::kBFloat16);
    parameter.set_data(weight);
    entries_.push_back({.parameter = parameter,
                        .weight = std::move(weight),
                        .master = std::move(master),
                        .version = static_cast<std::uint32_t>(parameter._version())});
  }
}

MasterWeights::~MasterWeights() {
  for (auto& entry : entries_) {
    entry.parameter.mutable_grad().reset();  // it may have the other dtype
    entry.parameter.set_data(entry.master);
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

// Gradients are cast before anything is changed, since a device may run out of memory.
void MasterWeights::show_masters() {
  adopt_edits();
  std::vector<at::Tensor> gradients;
  for (const auto& entry : entries_) {
    const auto& gradient = entry.parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.detach().to(at::kFloat) : gradient);
  }
  for (std::size_t place = 0; place < entries_.size(); ++place) {
    auto& entry = entries_[place];
    show(entry.parameter, entry.master);
    entry.gradient = std::exchange(entry.parameter.mutable_grad(), std::move(gradients[place]));
    entry.shows_master = true;
  }
}

void MasterWeights::show_weights(bool masters_changed) {
  if (masters_changed) update_weights();
  for (auto& entry : entries_) {
    if (!std::exchange(entry.shows_master, false)) continue;
    show(entry.parameter, entry.weight);
    entry.parameter.mutable_grad() = std::exchange(entry.gradient, {});
    entry.version = static_cast<std::uint32_t>(entry.parameter._version());
  }
}

void MasterWeights::update_weights() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (const auto& entry : entries_) weights.push_back(entry.weight);
  if (!weights.empty()) at::_foreach_copy_(weights, masters());
}

// Elements that still are the cast of their master keep its other bits.
void MasterWeights::adopt_edits() {
  const c10::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    if (entry.shows_master) continue;
    const auto version = static_cast<std::uint32_t>(entry.parameter._version());
    const bool is_replaced = !entry.parameter.is_alias_of(entry.weight);
    if (!is_replaced && std::exchange(entry.version, version) == version) continue;
    const auto shown = entry.parameter.detach().to(at::kFloat);
    entry.master.copy_(at::where(shown.eq(entry.master.to(at::kBFloat16).to(at::kFloat)), entry.master, shown));
    if (!is_replaced) continue;
    entry.weight.copy_(entry.master);
    show(entry.parameter, entry.weight);
  }
}

}  // namespace accel
