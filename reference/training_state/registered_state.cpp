#include "reference/training_state/registered_state.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/training_state/shard_files.hpp"

namespace accel::checkpoint {
namespace {

using Custom = TrainingState::Custom;

bool is_divided(const Custom& custom, const TrainingState& state) {
  if (custom.layouts) return custom.layouts->has_divided_layers();
  if (!custom.optimizer) return false;
  const auto parameters = optim::parameters_of(*custom.optimizer);
  return std::ranges::any_of(parameters,
                             [&](const auto& parameter) { return division_of(parameter, state) != nullptr; });
}

Value complete_state(const Custom& custom, const TrainingState& state, RankContext& context) {
  if (custom.optimizer) {
    std::vector<TensorPart> pieces;
    return state_dict_of(*custom.optimizer, state, context, OptimizerForm::kWhole, pieces);
  }
  Value::Dict tensors;
  for (const auto& [name, tensor] : custom.layouts->complete(state_dict_of(*custom.module)))
    tensors.emplace(name, tensor.detach());
  return tensors;
}

// Replaces complete tensors by this rank's parts. Tensors that the module lacks remain, for the error that lists them.
Value own_parts(const Custom& custom, const Value& complete) {
  auto tensors = complete.as<Value::Dict>();
  std::vector<std::string> problems;
  for (const auto& [name, part] : state_dict_of(*custom.module)) {
    const auto* divided = custom.layouts->of_layer(name);
    const auto saved = tensors.find(name);
    if (divided == nullptr || saved == tensors.end()) continue;
    const auto& whole = saved->second.as<at::Tensor>();
    const auto& expected = divided->layout.sizes;
    if (whole.sizes() == c10::IntArrayRef(expected)) {
      saved->second = divided->part_of(whole);
      continue;
    }
    problems.push_back(fmt::format("'{}' has sizes [{}], the complete module's are [{}]", name,
                                   fmt::join(whole.sizes(), ", "), fmt::join(expected, ", ")));
  }
  check_checkpoint(problems.empty(), "{}", listed(problems, "; "));
  return tensors;
}

}  // namespace

void check_registered(const TrainingState& state) {
  const bool has_stages =
      std::ranges::any_of(state.models, [](const auto& model) { return model->layouts().stages() != nullptr; });
  for (std::size_t i = 0; i < state.custom.size(); ++i) {
    check_state(
        !has_stages || (!state.custom[i].module && !state.custom[i].optimizer),
        "register_for_checkpointing: object {} is a module or an optimizer, of which the ranks of a pipeline may "
        "have different parts, and only the first rank's is saved; prepare it, or register an object whose state "
        "is that of all ranks",
        i);
    if (!state.custom[i].module) continue;
    for (const auto& parameter : state.custom[i].module->parameters()) {
      const auto is_shard = std::ranges::any_of(state.models, [&](const auto& model) {
        return model->is_sharded() && model->layouts().find(parameter) != nullptr;
      });
      check_state(!is_shard,
                  "register_for_checkpointing: object {} is a module with parameters of a prepared sharded model, of "
                  "which this rank has shards; do not register it, since save_state stores prepared models",
                  i);
    }
  }
}

std::vector<std::function<Value()>> registered_states(const TrainingState& state, RankContext& context) {
  std::vector<std::function<Value()>> states;
  for (const auto& custom : state.custom) {
    if (is_divided(custom, state))
      states.emplace_back([complete = complete_state(custom, state, context)] { return complete; });
    else
      states.push_back(custom.state_dict);
  }
  return states;
}

void load_registered(const TrainingState& state, std::size_t index, const Value& complete) {
  const auto& custom = state.custom[index];
  if (!is_divided(custom, state))
    custom.load_state_dict(complete);
  else
    custom.load_state_dict(custom.optimizer ? parts_of(complete, {}, *custom.optimizer, state)
                                            : own_parts(custom, complete));
}

}  // namespace accel::checkpoint
