#include "reference/prepared/parameter_layouts.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/modules/parameter_cut.hpp"

namespace accel {

ParameterLayouts::ParameterLayouts(const torch::nn::Module& module) : of_layers_(parallel::divided_parameters(module)) {
  const auto* staged = dynamic_cast<const StagedModule*>(&module);
  if (staged != nullptr && staged->stages().group.size() > 1) {
    stages_ = staged->stages();
    for (const auto& item : module.named_parameters()) {
      const auto* entry = stages_->find(item.key());
      check_state(entry != nullptr,
                  "prepare: the pipeline has parameters that were registered after pipeline_model; make them part of a "
                  "layer");
      places_in_stages_.emplace(item.value().unsafeGetTensorImpl(), entry - stages_->entries.data());
    }
  }
  if (of_layers_.empty()) return;
  for (const auto& item : module.named_parameters()) {
    if (const auto* divided = of_layer(item.key())) by_tensor_.emplace(item.value().unsafeGetTensorImpl(), *divided);
  }
}

void ParameterLayouts::add_shards(const std::vector<std::pair<at::Tensor, DividedParameter>>& shards) {
  for (const auto& [parameter, shard] : shards) {
    const auto [entry, is_new] = by_tensor_.emplace(parameter.unsafeGetTensorImpl(), shard);
    if (is_new) continue;
    auto& divided = entry->second;
    divided.layout.divisions.push_back(shard.layout.divisions.front());
    divided.groups.push_back(shard.groups.front());
  }
}

const DividedParameter* ParameterLayouts::find(const at::Tensor& parameter) const {
  const auto entry = by_tensor_.find(parameter.unsafeGetTensorImpl());
  return entry == by_tensor_.end() ? nullptr : &entry->second;
}

const ModelStages::Entry* ParameterLayouts::entry_in_stages(const at::Tensor& parameter) const {
  const auto place = places_in_stages_.find(parameter.unsafeGetTensorImpl());
  return place == places_in_stages_.end() ? nullptr : &stages_->entries[place->second];
}

bool ParameterLayouts::has_layers_over(MeshAxis axis) const {
  return std::ranges::any_of(of_layers_, [&](const auto& item) { return item.second.is_divided_over(axis); });
}

const DividedParameter* ParameterLayouts::of_layer(const std::string& name) const {
  const auto divided = of_layers_.find(name);
  return divided == of_layers_.end() ? nullptr : &divided->second;
}

std::pair<NamedTensors, NamedTensors> ParameterLayouts::split_experts(const NamedTensors& parameters) const {
  NamedTensors experts, others;
  for (const auto& item : parameters) {
    const auto* divided = of_layer(item.first);
    (divided != nullptr && divided->is_divided_over(kExpertAxis) ? experts : others).push_back(item);
  }
  return {std::move(experts), std::move(others)};
}

// A file has a tensor under its first name, perhaps only under that one.
void ParameterLayouts::keep_own(const NamedTensors& own, std::map<std::string, StoredWeight>& weights) const {
  if (!stages_) return;
  std::set<std::string> names;
  for (const auto& [name, tensor] : own) {
    names.insert(name);
    const auto* entry = stages_->find(name);
    if (entry == nullptr || weights.contains(name)) continue;
    for (const auto& other : stages_->entries) {
      const auto saved = other.first_name == entry->first_name ? weights.find(other.name) : weights.end();
      if (saved != weights.end()) weights.try_emplace(name, saved->second);
    }
  }
  std::erase_if(weights,
                [&](const auto& item) { return !names.contains(item.first) && stages_->find(item.first) != nullptr; });
}

NamedTensors ParameterLayouts::complete(NamedTensors state) const {
  std::map<const c10::TensorImpl*, at::Tensor> completed;  // a tensor with several names stays one tensor
  for (auto& [name, tensor] : state) {
    const auto* divided = of_layer(name);
    if (divided == nullptr) continue;
    auto& whole = completed[tensor.unsafeGetTensorImpl()];
    if (!whole.defined()) whole = divided->complete_of(tensor);
    tensor = whole;
  }
  return stages_ ? stages_->gather_on_first(state) : state;
}

std::map<std::string, StoredWeight> ParameterLayouts::parts_of(const std::string& what, const NamedTensors& parts,
                                                               std::map<std::string, StoredWeight> weights) const {
  keep_own(parts, weights);
  std::vector<std::string> problems;
  for (const auto& [name, part] : parts) {
    const auto* divided = of_layer(name);
    const auto weight = weights.find(name);
    if (divided == nullptr || weight == weights.end()) continue;
    auto& stored = weight->second;
    const auto& expected = divided->layout.sizes;
    if (stored.sizes != expected) {
      problems.push_back(fmt::format("'{}' has sizes [{}], the model expects [{}]", name, fmt::join(stored.sizes, ", "),
                                     fmt::join(expected, ", ")));
      continue;
    }
    stored.sizes = part.sizes().vec();
    stored.load_directly = nullptr;  // it reads the complete tensor
    stored.load = [divided = *divided, load = stored.load] { return divided.part_of(load()); };
  }
  check_checkpoint(problems.empty(), "{}: {}; build the model that was saved", what, listed(problems, "; "));
  return weights;
}

}  // namespace accel
