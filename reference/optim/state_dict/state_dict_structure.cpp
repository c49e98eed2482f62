// The common structure of state dicts: groups, numbers of parameters, and states by number.
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/optim/state_dict/state_dict_codec.hpp"

namespace accel::optim {
namespace {

struct SavedGroup {
  Value::Dict options;
  std::vector<std::string> params;  // keys into `state`
};

// Numbers of parameters are converted to text, because they are keys of `state`, which a Value::Dict stores as text.
std::optional<SavedGroup> saved_group(const Value& value, const std::string& place, StateDictProblems& problems) {
  if (!value.is<Value::Dict>() || !value.contains("params") || !value.at("params").is<Value::List>()) {
    problems.add(fmt::format("{}: expected a dict with a list 'params'", place));
    return std::nullopt;
  }
  SavedGroup group{.options = value.as<Value::Dict>(), .params = {}};
  for (const auto& param : value.at("params").as<Value::List>()) {
    if (param.is<std::int64_t>()) {
      group.params.push_back(std::to_string(param.as<std::int64_t>()));
    } else {
      problems.add(fmt::format("{}.params: expected numbers, got {}", place, param.type_name()));
    }
  }
  return group;
}

// Loads in two halves: `read` checks everything and changes nothing, `commit` only moves what was read. A state dict
// that does not fit therefore leaves the optimizer unchanged.
class StateDictReader {
 public:
  StateDictReader(torch::optim::Optimizer& optimizer, const StateDictCodec& form)
      : optimizer_(optimizer), codec_(form) {}

  void read(const Value& state_dict) {
    if (!state_dict.contains("state") || !state_dict.at("state").is<Value::Dict>() ||
        !state_dict.contains("param_groups") || !state_dict.at("param_groups").is<Value::List>()) {
      problems_.add("expected a dict with a dict 'state' and a list 'param_groups'; pass the result of state_dict()");
    } else {
      read_groups(state_dict.at("param_groups").as<Value::List>(), state_dict.at("state").as<Value::Dict>());
    }
    problems_.throw_if_any();
  }

  // Replaces the complete state, so that parameters without a saved state lose theirs, as in Python.
  void commit() {
    auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) groups[group].set_options(std::move(options_[group]));
    optimizer_.state() = std::move(states_);
  }

 private:
  void read_groups(const Value::List& saved, const Value::Dict& states) {
    auto& groups = optimizer_.param_groups();
    // Nothing below could be matched then; further messages would only repeat the cause.
    if (saved.size() != groups.size()) {
      problems_.add(fmt::format("param_groups: expected {} groups, got {}", groups.size(), saved.size()));
      return;
    }
    // States that no group refers to are reported: they usually mean that the state dict belongs to another model.
    std::set<std::string> unread;
    for (const auto& [key, state] : states) unread.insert(key);
    for (std::size_t index = 0; index < groups.size(); ++index)
      read_group(fmt::format("param_groups[{}]", index), saved[index], groups[index], states, unread);
    for (const auto& key : unread)
      problems_.add(
          fmt::format("state[{}]: no group has this parameter; expected numbers that param_groups list", key));
  }

  void read_group(const std::string& place, const Value& value, torch::optim::OptimizerParamGroup& group,
                  const Value::Dict& states, std::set<std::string>& unread) {
    const auto saved = saved_group(value, place, problems_);
    if (!saved) return;
    // Before the states: which tensors a state needs depends on the loaded options, not on the current ones.
    options_.push_back(codec_.read_options(saved->options, group.options(), place, problems_));
    for (const auto& key : saved->params) unread.erase(key);
    if (saved->params.size() != group.params().size()) {
      problems_.add(
          fmt::format("{}.params: expected {} parameters, got {}", place, group.params().size(), saved->params.size()));
      return;
    }
    // Parameters are matched by position, as in Python. A parameter without a state has not been stepped yet.
    for (std::size_t param = 0; param < saved->params.size(); ++param) {
      const auto state = states.find(saved->params[param]);
      if (state != states.end())
        read_state(fmt::format("state[{}]", state->first), state->second, group.params()[param]);
    }
  }

  void read_state(const std::string& place, const Value& value, const at::Tensor& param) {
    if (!value.is<Value::Dict>()) {
      problems_.add(fmt::format("{}: expected a dict, got {}", place, value.type_name()));
      // SGD without momentum has empty states; Python writes and accepts them.
    } else if (!value.as<Value::Dict>().empty()) {
      states_[param.unsafeGetTensorImpl()] =
          codec_.read_state(value.as<Value::Dict>(), param, *options_.back(), place, problems_);
    }
  }

  torch::optim::Optimizer& optimizer_;
  const StateDictCodec& codec_;
  StateDictProblems problems_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;  // in the order of groups
  ParamStates states_;
};

}  // namespace

Value write_state_dict(const torch::optim::Optimizer& optimizer, const StateDictCodec& form) {
  Value::Dict states;
  Value::List groups;
  std::map<const void*, std::int64_t> numbers;  // a parameter that is listed twice keeps its first number
  std::int64_t start = 0;
  for (const auto& group : optimizer.param_groups()) {
    Value::List params;
    for (const auto& param : group.params()) {
      const auto position = start + static_cast<std::int64_t>(params.size());
      const auto number = numbers.try_emplace(param.unsafeGetTensorImpl(), position).first->second;
      params.emplace_back(number);
      const auto state = optimizer.state().find(param.unsafeGetTensorImpl());
      if (number != position || state == optimizer.state().end()) continue;
      auto dict = form.write_state(*state->second);
      if (!dict.empty()) states[std::to_string(number)] = std::move(dict);
    }
    // Numbers continue over groups, and a repeated parameter uses up a number: Python's packing does the same.
    start += static_cast<std::int64_t>(params.size());
    auto options = form.write_options(group.options());
    options["params"] = std::move(params);
    groups.emplace_back(std::move(options));
  }
  return Value::Dict{{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

void read_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict, const StateDictCodec& form) {
  StateDictReader reader(optimizer, form);
  reader.read(state_dict);
  reader.commit();
}

}  // namespace accel::optim
