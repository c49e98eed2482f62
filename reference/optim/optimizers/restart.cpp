#include "reference/optim/optimizers/restart.hpp"

#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>

#include <algorithm>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

namespace accel::optim {

using LibTorchsState = torch::optim::AdagradParamState;

bool has_stepped(const torch::optim::Optimizer& optimizer) {
  if (const auto* ours = dynamic_cast<const OptimizerWithStateDict*>(&optimizer)) return ours->has_stepped();
  const bool is_adagrad = dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
  return std::any_of(optimizer.state().begin(), optimizer.state().end(), [&](const auto& entry) {
    return !is_adagrad || static_cast<const LibTorchsState&>(*entry.second).step() > 0;
  });
}

void restart(torch::optim::Optimizer& optimizer) {
  if (auto* ours = dynamic_cast<OptimizerWithStateDict*>(&optimizer)) return ours->restart();
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  const auto& defaults = static_cast<const torch::optim::AdagradOptions&>(optimizer.defaults());
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      auto state = std::make_unique<LibTorchsState>();
      state->sum(at::full_like(parameter.detach(), defaults.initial_accumulator_value()));
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace accel::optim
