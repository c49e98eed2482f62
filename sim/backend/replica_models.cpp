#include "sim/backend/replica_models.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

namespace accel::sim {

ReplicaModels compared_models(std::vector<std::weak_ptr<const Replicas>>& models) {
  ReplicaModels compared;
  std::erase_if(models, [&](const auto& weak) {
    auto replicas = weak.lock();
    const bool is_gone = !replicas;
    if (!is_gone && !replicas->are_local) compared.push_back(std::move(replicas));
    return is_gone;
  });
  return compared;
}

std::vector<ParameterState> states_of(const ReplicaModels& models) {
  std::vector<ParameterState> states;
  for (const auto& model : models) {
    for (const auto& [name, parameter] : model->parameters) states.push_back(state_of(parameter));
  }
  return states;
}

// Several models may have parameters of the same name, so the model's number is added.
std::vector<std::string> names_of(const ReplicaModels& models) {
  std::vector<std::string> names;
  for (std::size_t model = 0; model < models.size(); ++model) {
    const auto prefix = models.size() > 1 ? fmt::format("model {}: ", model) : "";
    for (const auto& [name, parameter] : models[model]->parameters) names.push_back(prefix + name);
  }
  return names;
}

std::vector<int> parts_of(const ReplicaModels& models) {
  std::vector<int> parts;
  for (const auto& model : models) {
    const auto end = parts.size() + model->parameters.size();
    for (const auto& layout : model->layouts) parts.push_back(layout.layer_part());
    parts.resize(end, ParameterLayout::kUndivided);
  }
  return parts;
}

int stage_rank_of(const ReplicaModels& models) {
  for (const auto& model : models) {
    if (model->stage_rank) return *model->stage_rank;
  }
  return 0;
}

// A rank with more parameters than the last to submit differs in one that is missing here.
ParameterDescription describe_parameter(const ReplicaModels& models, std::size_t place) {
  const auto* found = &models.back()->parameters.back();
  for (const auto& model : models) {
    if (place < model->parameters.size()) {
      found = &model->parameters[place];
      break;
    }
    place -= model->parameters.size();
  }
  const auto& [name, tensor] = *found;
  return {.name = name, .dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

}  // namespace accel::sim
