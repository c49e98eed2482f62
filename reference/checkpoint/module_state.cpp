#include "reference/checkpoint/module_state.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::checkpoint {
namespace {

// Not named_parameters(recurse): it lists all parameters before all buffers, while Python interleaves them per module.
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

Value value_of(const torch::nn::Module& module) {
  Value::Dict tensors;
  for (const auto& [name, tensor] : state_dict_of(module)) tensors.emplace(name, tensor.detach());
  return tensors;
}

void load_value(torch::nn::Module& module, const Value& state) {
  const auto& saved = state.as<Value::Dict>();
  std::vector<std::string> problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  const auto own = state_dict_of(module);
  std::set<std::string> known;
  for (const auto& [name, tensor] : own) {
    known.insert(name);
    const auto found = saved.find(name);
    if (found == saved.end()) {
      problems.push_back(fmt::format("'{}' is missing", name));
      continue;
    }
    const auto& values = found->second.as<at::Tensor>();
    if (values.sizes() != tensor.sizes()) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the module expects [{}]", name,
                                     fmt::join(values.sizes(), ", "), fmt::join(tensor.sizes(), ", ")));
    }
    copies.emplace_back(tensor.detach(), values);
  }
  for (const auto& [name, values] : saved) {
    if (!known.contains(name)) problems.push_back(fmt::format("'{}' is not in the module", name));
  }
  if (!problems.empty()) throw CheckpointError(listed(problems, "; "));
  for (const auto& [tensor, values] : copies) tensor.copy_(values);
}

// Collects all problems instead of stopping at the first: a user with another model sees at once what differs. Nothing
// is loaded here, so the caller can still refuse.
std::vector<std::pair<at::Tensor, StoredWeight>> matched(const std::string& what, const NamedTensors& state,
                                                         const std::map<std::string, StoredWeight>& weights,
                                                         bool strict) {
  std::set<const c10::TensorImpl*> found;
  std::set<std::string> known;
  std::vector<std::string> problems;
  std::vector<std::pair<at::Tensor, StoredWeight>> pairs;
  for (const auto& [name, tensor] : state) {
    known.insert(name);
    const auto saved = weights.find(name);
    // Tied tensors have the same TensorImpl; the first name that is saved wins.
    if (saved == weights.end() || !found.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (tensor.sizes() != c10::IntArrayRef(saved->second.sizes)) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the model expects [{}]", name,
                                     fmt::join(saved->second.sizes, ", "), fmt::join(tensor.sizes(), ", ")));
    }
    pairs.emplace_back(tensor, saved->second);
  }
  for (const auto& [name, tensor] : state) {
    if (strict && !weights.contains(name) && !found.contains(tensor.unsafeGetTensorImpl()))
      problems.push_back(fmt::format("'{}' is missing", name));
  }
  for (const auto& [name, tensor] : weights) {
    if (strict && !known.contains(name)) problems.push_back(fmt::format("'{}' is not in the model", name));
  }
  if (!problems.empty())
    throw CheckpointError(fmt::format("{}: {}; build the model that was saved", what, listed(problems, "; ")));
  return pairs;
}

}  // namespace accel::checkpoint
