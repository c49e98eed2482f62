#pragma once

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "reference/optim/state_dict/param_group_options.hpp"
#include "reference/optim/state_dict/tensor_lists.hpp"

/// How a class of optimizers converts its options and states to and from state dicts. The structure around them is
/// common; see state_dict_structure.cpp.
///
///     return write_state_dict(optimizer, OwnStateDictCodec<AdamOptions>());
///
/// Thread rule: pure functions.
namespace accel::optim {

/// Collects mismatches, each with its place in the state dict.
class StateDictProblems {
 public:
  void add(std::string text) { problems_.push_back(std::move(text)); }
  /// Throws CheckpointError with all problems.
  void throw_if_any() const;

 private:
  std::vector<std::string> problems_;
};

class StateDictCodec {
 public:
  virtual ~StateDictCodec() = default;
  [[nodiscard]] virtual Value::Dict write_options(const torch::optim::OptimizerOptions& options) const = 0;
  [[nodiscard]] virtual Value::Dict write_state(const torch::optim::OptimizerParamState& state) const = 0;
  /// `place` is the dict's path in the state dict, for messages.
  [[nodiscard]] virtual std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const Value::Dict& dict, const torch::optim::OptimizerOptions& now, const std::string& place,
      StateDictProblems& problems) const = 0;
  [[nodiscard]] virtual std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Value::Dict& dict, const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::string& place, StateDictProblems& problems) const = 0;
};

Value write_state_dict(const torch::optim::Optimizer& optimizer, const StateDictCodec& form);
void read_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict, const StateDictCodec& form);

/// The implementation of the step, which the entries `fused` and `foreach` record.
enum class Implementation { kFused, kForeach, kLibTorch };

/// Reads one option from a group's entries. A missing flag is off, a missing or null optional value is absent; a
/// missing number is a problem.
void read_option(const Value::Dict& dict, const char* name, double& number, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, bool& flag, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, int& number, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, NumberPair& pair, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, NumberTriple& triple, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, OptionalNumberPair& pair, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, std::optional<bool>& flag, const std::string& place,
                 StateDictProblems& problems);
void read_option(const Value::Dict& dict, const char* name, std::optional<std::string>& text, const std::string& place,
                 StateDictProblems& problems);

inline Value option_value(double number) { return number; }
inline Value option_value(bool flag) { return flag; }
inline Value option_value(int number) { return number; }
template <typename T>
Value option_value(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}
template <typename... T>
Value option_value(const std::tuple<T...>& numbers) {
  return std::apply([](const auto&... number) { return Value(Value::List{option_value(number)...}); }, numbers);
}

/// Converts the tensors of a parameter to entries by name, and back.
Value::Dict write_tensors(const std::vector<at::Tensor>& tensors, const std::vector<StateEntry>& entries);
std::vector<at::Tensor> read_tensors(const Value::Dict& dict, const at::Tensor& param,
                                     const std::vector<StateEntry>& entries, const std::string& place,
                                     StateDictProblems& problems);

/// Whether a group's entry selects an implementation of Python's, which is not an option here.
bool is_implementation_entry(const std::string& name);
bool is_true(const Value::Dict& dict, const char* name);

template <typename Options>
Value::Dict write_options(const Options& options, Implementation implementation) {
  Value::Dict dict;
  for_each_option(options, [&](const char* name, const auto& value) { dict[name] = option_value(value); });
  if constexpr (requires { Options::kOnlyOptionEntries; }) return dict;
  dict["foreach"] = implementation == Implementation::kForeach ? Value(true) : Value();
  if constexpr (requires { options.fused; })
    dict["fused"] = implementation == Implementation::kFused ? Value(true) : Value();
  if constexpr (!requires { Options::kNeverCapturable; }) dict["capturable"] = false;
  if constexpr (requires { Options::kAlwaysDecoupled; }) dict["decoupled_weight_decay"] = true;
  dict["differentiable"] = false;
  return dict;
}

template <typename Options>
Options read_group(const Value::Dict& dict, const Options& now, const std::string& place, StateDictProblems& problems) {
  auto options = now;
  for_each_option(options, [&](const char* name, auto& value) { read_option(dict, name, value, place, problems); });
  if constexpr (requires { options.fused; }) {
    if (is_true(dict, "fused")) options.fused = true;
    if (is_true(dict, "foreach")) options.fused = false;
  }
  for (const auto& problem : problems_of(options))
    problems.add(fmt::format("{}.{}: {}", place, problem.name, problem.text));
  return options;
}

/// State dicts of this library's optimizers.
template <typename Options>
class OwnStateDictCodec : public StateDictCodec {
 public:
  [[nodiscard]] Value::Dict write_options(const torch::optim::OptimizerOptions& group) const override {
    const auto options = options_of<Options>(group);
    auto dict = optim::write_options(options, is_fused(options) ? Implementation::kFused : Implementation::kForeach);
    if (const auto* ours = dynamic_cast<const ParamGroupOptions*>(&group))
      dict.insert(ours->extras().begin(), ours->extras().end());
    return dict;
  }
  [[nodiscard]] Value::Dict write_state(const torch::optim::OptimizerParamState& state) const override {
    return write_tensors(static_cast<const ParamState&>(state).tensors, state_entries(Options()));
  }
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const Value::Dict& dict, const torch::optim::OptimizerOptions& now, const std::string& place,
      StateDictProblems& problems) const override {
    auto group = std::make_unique<GroupOptions<Options>>(read_group(dict, options_of<Options>(now), place, problems));
    const auto known = optim::write_options(Options(), Implementation::kForeach);
    for (const auto& [name, value] : dict) {
      if (!known.contains(name) && !is_implementation_entry(name)) group->extras()[name] = value;
    }
    return group;
  }
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Value::Dict& dict, const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::string& place, StateDictProblems& problems) const override {
    auto state = std::make_unique<ParamState>();
    state->tensors = read_tensors(dict, param, state_entries(options_of<Options>(options)), place, problems);
    return state;
  }
};

}  // namespace accel::optim
