#include "reference/accelerator/load_checkpoint.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <set>

#include "reference/accelerator/state_files.hpp"
#include "reference/accelerator/weights_match.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace checkpoint {

std::vector<std::pair<at::Tensor, StoredWeight>> matched(const std::string& what, const NamedTensors& state, const std::map<std::string, StoredWeight>& weights, bool strict) {
  std::set<const c10::TensorImpl*> found;
  std::set<std::string> known;
  std::vector<std::string> problems;
  std::vector<std::pair<at::Tensor, StoredWeight>> pairs;
  for (const auto& [name, tensor] : state) {
    known.insert(name);
    const auto saved = weights.find(name);
    if (saved == weights.end() || !found.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (tensor.sizes() != c10::IntArrayRef(saved->second.sizes)) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the model's are [{}]", name, fmt::join(saved->second.sizes, ", "), fmt::join(tensor.sizes(), ", ")));
    }
    pairs.emplace_back(tensor, saved->second);
  }
  for (const auto& [name, tensor] : state) {
    if (strict && !weights.contains(name) && !found.contains(tensor.unsafeGetTensorImpl())) problems.push_back(fmt::format("'{}' is missing", name));
  }
  for (const auto& [name, tensor] : weights) {
    if (strict && !known.contains(name)) problems.push_back(fmt::format("'{}' is not in the model", name));
  }
  if (!problems.empty()) throw CheckpointError(fmt::format("{}: {}", what, fmt::join(problems, "; ")));
  return pairs;
}

}  // namespace checkpoint

void load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint, LoadCheckpointOptions options) {
  const c10::NoGradGuard no_grad;
  for (auto& [tensor, saved] : checkpoint::matched(checkpoint, checkpoint::state_dict_of(module), read_weights(checkpoint), options.strict)) tensor.detach().copy_(saved.load());
}

}  // namespace accel
