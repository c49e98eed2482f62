#include "reference/prepared/unsharded_model.hpp"

#include <torch/nn/module.h>

#include "reference/checkpoint/module_state.hpp"

namespace accel {

NamedTensors UnshardedModel::full_state(std::optional<at::ScalarType>) {
  auto state = weights();
  for (auto& [name, tensor] : state) tensor = tensor.detach().cpu();
  return state;
}

NamedTensors UnshardedModel::weights() { return checkpoint::state_dict_of(*module()); }

std::function<void()> UnshardedModel::prepare_load(const std::string& what,
                                                   const std::map<std::string, StoredWeight>& weights_by_name) {
  return [loads = checkpoint::matched(what, weights(), weights_by_name, /*strict=*/true)] {
    for (const auto& [tensor, saved] : loads) saved.load_into(tensor.detach());
  };
}

std::vector<std::int64_t> UnshardedModel::gradient_sizes(const at::Tensor& parameter, const Value&) const {
  return parameter.sizes().vec();
}

void UnshardedModel::load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value&) {
  for (const auto& item : module()->named_parameters()) {
    if (const auto found = gradients.find(item.key()); found != gradients.end()) {
      auto parameter = item.value();
      parameter.mutable_grad() = found->second.to(parameter.device());
    }
  }
}

sharded::MemoryAccount UnshardedModel::memory_account() {
  using Kind = sharded::MemoryKind;
  auto account = activations_;
  for (const auto& parameter : each_once(module()->parameters())) {
    account.add(Kind::kParameters, static_cast<std::int64_t>(parameter.nbytes()));
    if (parameter.grad().defined()) account.add(Kind::kGradients, static_cast<std::int64_t>(parameter.grad().nbytes()));
  }
  return account;
}

}  // namespace accel
