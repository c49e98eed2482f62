#include "reference/checkpoint/module_state.hpp"

#include <torch/nn/module.h>

namespace accel::checkpoint {
namespace {

void list_state(const torch::nn::Module& module, const std::string& prefix, NamedTensors& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    state.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    state.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_children()) list_state(*item.value(), prefix + item.key() + ".", state);
}

}  // namespace

NamedTensors state_dict_of(const torch::nn::Module& module) {
  NamedTensors state;
  list_state(module, "", state);
  return state;
}

}  // namespace accel::checkpoint
