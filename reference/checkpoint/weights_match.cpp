#include "reference/checkpoint/weights_match.hpp"

#include <fmt/ranges.h>

#include <set>

#include "reference/core/errors.hpp"

namespace accel::checkpoint {

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
    if (saved == weights.end() || !found.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (tensor.sizes() != c10::IntArrayRef(saved->second.sizes)) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the model's are [{}]", name,
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
  if (!problems.empty()) throw CheckpointError(fmt::format("{}: {}", what, fmt::join(problems, "; ")));
  return pairs;
}

}  // namespace accel::checkpoint
