#include "reference/optim/restart.hpp"

#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>

#include <algorithm>

#include "reference/optim/fused_adagrad.hpp"

namespace accel::optim {
namespace {

double steps_of(const torch::optim::AdagradParamState& state) { return static_cast<double>(state.step()); }
double steps_of(const ParamState& state) { return state.tensors.front().item<double>(); }

std::unique_ptr<torch::optim::AdagradParamState> libtorchs_initial_state(const at::Tensor& parameter, const torch::optim::AdagradOptions& defaults) {
  auto state = std::make_unique<torch::optim::AdagradParamState>();
  state->sum(at::full_like(parameter.detach(), defaults.initial_accumulator_value()));
  return state;
}

// `state_of` makes what the optimizer keeps for a parameter of a group.
template <typename State, typename StateOf>
bool restart_with(torch::optim::Optimizer& optimizer, const StateOf& state_of) {
  auto& states = optimizer.state();
  if (std::any_of(states.begin(), states.end(), [](const auto& entry) { return steps_of(static_cast<const State&>(*entry.second)) > 0; })) return false;
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const auto& parameter : groups[group].params()) states[parameter.unsafeGetTensorImpl()] = state_of(parameter, group);
  }
  return true;
}

}  // namespace

bool restart(torch::optim::Optimizer& optimizer) {
  if (optimizer.state().empty()) return true;
  if (auto* const ours = dynamic_cast<Adagrad*>(&optimizer)) {
    return restart_with<ParamState>(optimizer, [&](const at::Tensor& parameter, std::size_t group) { return initial_state(parameter, state_entries(ours->options(group))); });
  }
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
    const auto& defaults = static_cast<const torch::optim::AdagradOptions&>(optimizer.defaults());
    return restart_with<torch::optim::AdagradParamState>(optimizer, [&](const at::Tensor& parameter, std::size_t) { return libtorchs_initial_state(parameter, defaults); });
  }
  return false;
}

}  // namespace accel::optim
