#include "reference/prepared/cut_parameters.hpp"

#include <c10/util/accumulate.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {

CutParameters::CutParameters(const torch::nn::Module& module) : by_name_(parallel::parameter_cuts(module)) {
  if (empty()) return;
  for (const auto& item : module.named_parameters()) {
    const auto cut = by_name_.find(item.key());
    if (cut != by_name_.end()) by_tensor_.emplace(item.value().unsafeGetTensorImpl(), Entry{item.key(), cut->second});
  }
}

const parallel::ParameterCut* CutParameters::find(const at::Tensor& parameter) const {
  const auto entry = by_tensor_.find(parameter.unsafeGetTensorImpl());
  return entry == by_tensor_.end() ? nullptr : &entry->second.cut;
}

const parallel::ParameterCut* CutParameters::find(const std::string& name) const {
  const auto cut = by_name_.find(name);
  return cut == by_name_.end() ? nullptr : &cut->second;
}

std::pair<NamedTensors, NamedTensors> CutParameters::split_experts(const NamedTensors& parameters) const {
  NamedTensors experts, others;
  for (const auto& item : parameters) {
    const auto* cut = find(item.first);
    (cut != nullptr && cut->axis == "ep" ? experts : others).push_back(item);
  }
  return {std::move(experts), std::move(others)};
}

NamedTensors CutParameters::complete(NamedTensors state) const {
  std::map<const c10::TensorImpl*, at::Tensor> completed;  // a tensor with several names stays one tensor
  for (auto& [name, tensor] : state) {
    const auto* cut = find(name);
    if (cut == nullptr) continue;
    auto& whole = completed[tensor.unsafeGetTensorImpl()];
    if (!whole.defined()) whole = cut->whole_of(tensor);
    tensor = whole;
  }
  return state;
}

std::map<std::string, StoredWeight> CutParameters::parts_of(const std::string& what, const NamedTensors& parts,
                                                            std::map<std::string, StoredWeight> weights) const {
  std::vector<std::string> problems;
  for (const auto& [name, part] : parts) {
    const auto* cut = find(name);
    const auto weight = weights.find(name);
    if (cut == nullptr || weight == weights.end()) continue;
    auto& stored = weight->second;
    const auto expected = cut->whole_sizes(part);
    if (stored.sizes != expected) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the model expects [{}]", name, fmt::join(stored.sizes, ", "),
                                     fmt::join(expected, ", ")));
      continue;
    }
    stored.sizes = part.sizes().vec();
    stored.load_directly = nullptr;  // it reads the complete tensor
    stored.load = [cut = *cut, load = stored.load] { return cut.part_of(load()); };
  }
  check_checkpoint(problems.empty(), "{}: {}; build the model that was saved", what, listed(problems, "; "));
  return weights;
}

const CutParameters::Entry& CutParameters::at(const at::Tensor& parameter) const {
  const auto entry = by_tensor_.find(parameter.unsafeGetTensorImpl());
  check_argument(entry != by_tensor_.end(),
                 "the parameter of shape [{}] is complete on every rank; expected one of a divided layer",
                 fmt::join(parameter.sizes(), ", "));
  return entry->second;
}

const std::string& CutParameters::name_of(const at::Tensor& parameter) const { return at(parameter).name; }

at::Tensor CutParameters::full_tensor_of(const at::Tensor& parameter, const at::Tensor& part) const {
  const auto& cut = at(parameter).cut;
  return cut.whole_of(inner_ == nullptr ? part : inner_->full_tensor_of(parameter, part));
}

sharded::ShardPiece CutParameters::piece_of(const at::Tensor& parameter, const at::Tensor& part) const {
  const auto& [name, cut] = at(parameter);
  auto sizes = inner_ == nullptr ? part.sizes().vec() : inner_->piece_of(parameter, part).sizes;
  sizes.at(static_cast<std::size_t>(cut.dim)) = cut.length_of_whole();
  return {.name = name, .sizes = std::move(sizes), .part = {}, .values = part};
}

at::Tensor CutParameters::part_of(const at::Tensor& parameter, const at::Tensor& whole) const {
  const auto& cut = at(parameter).cut;
  const auto own = cut.part_of(whole.view(piece_of(parameter, parameter).sizes));
  return inner_ == nullptr ? own : inner_->part_of(parameter, own);
}

}  // namespace accel
