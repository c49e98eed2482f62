#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/tree/value.hpp"

/// The entries of a schedule's state dict, listed once for writing and for reading:
///
///     void StepLR::state_fields(optim::StateFields& fields) {
///       LRScheduler::state_fields(fields);
///       fields("step_size", step_size_, optim::at_least(1));
///       fields("gamma", gamma_);
///     }
///
/// Reading collects every entry that is missing, of another type or invalid, and changes nothing before `apply`. Thread
/// rule: a value.
namespace accel::optim {

/// The condition that an entry must meet; `expected` describes it in messages.
template <typename T>
struct Rule {
  std::function<bool(const T&)> holds;
  std::string expected = {};
};

template <typename T>
Rule<T> at_least(T least) {
  return {[least](const T& value) { return value >= least; }, std::to_string(least) + " or more"};
}
template <typename T>
Rule<T> not_zero() {
  return {[](const T& value) { return value != 0; }, "a number other than 0"};
}
/// The value with which the schedule was created. A loaded state cannot change it: it decides which entries exist and
/// which options of the optimizer the schedule controls.
inline Rule<bool> unchanged_since_construction(bool value) {
  return {[value](bool loaded) { return loaded == value; },
          std::string(value ? "true" : "false") + ", with which this schedule was created"};
}
/// The value must be one of these texts.
Rule<std::string> one_of(std::vector<std::string> known);

Value state_value(bool value);
Value state_value(int value);
Value state_value(std::int64_t value);
Value state_value(double value);
Value state_value(const std::string& value);
Value state_value(const std::optional<double>& value);
Value state_value(const std::vector<int>& values);
Value state_value(const std::vector<double>& values);
/// A dict with the numbers as text keys, the only kind of key that a state dict supports.
Value state_value(const std::map<int, int>& values);

/// Returns false if the value has another type. Integers are accepted as floats, as in Python.
bool read_state(const Value& value, bool& target);
bool read_state(const Value& value, int& target);
bool read_state(const Value& value, std::int64_t& target);
bool read_state(const Value& value, double& target);
bool read_state(const Value& value, std::string& target);
bool read_state(const Value& value, std::optional<double>& target);
bool read_state(const Value& value, std::vector<int>& target);
bool read_state(const Value& value, std::vector<double>& target);
bool read_state(const Value& value, std::map<int, int>& target);

class StateFields {
 public:
  /// Writes into `written`.
  explicit StateFields(Value::Dict& written) : written_(&written) {}
  /// Reads from `read`; `path` precedes keys in messages.
  explicit StateFields(const Value& read, std::string path = "");

  template <typename T>
  void operator()(const std::string& key, T& target, const Rule<std::type_identity_t<T>>& rule = {}) {
    if (written_ != nullptr) {
      written_->insert_or_assign(key, state_value(target));
    } else if (const auto* value = find(key)) {
      read(key, *value, target, rule);
    }
  }
  /// An entry that is written, but ignored when reading.
  void constant(const std::string& key, Value value);

  [[nodiscard]] bool writes() const { return written_ != nullptr; }
  /// The entry, for values that `operator()` does not support; null if it is missing, which is recorded as a problem.
  /// For reading only.
  const Value* find(const std::string& key);
  void write(const std::string& key, Value value) { written_->insert_or_assign(key, std::move(value)); }
  void problem(const std::string& key, const std::string& text);
  /// Registers an assignment that `apply` performs.
  void change(std::function<void()> change) { changes_.push_back(std::move(change)); }
  /// Reads a nested dict; its keys are reported below `path`.
  void part(const Value& value, const std::string& path, const std::function<void(StateFields&)>& read);
  /// Throws CheckpointError with all problems, or performs all assignments. `of` names the object in the message.
  void apply(const std::string& of);

 private:
  template <typename T>
  void read(const std::string& key, const Value& value, T& target, const Rule<T>& rule) {
    auto loaded = target;
    if (!read_state(value, loaded)) {
      problem(key, "expected " + state_value(T{}).type_name() + ", got " + value.type_name());
    } else if (rule.holds && !rule.holds(loaded)) {
      problem(key, "expected " + rule.expected + ", got " + shown(value));
    } else {
      change([&target, loaded = std::move(loaded)] { target = loaded; });
    }
  }
  static std::string shown(const Value& value);

  Value::Dict* written_ = nullptr;
  const Value* read_ = nullptr;
  std::string path_;
  std::vector<std::string> problems_;
  std::vector<std::function<void()>> changes_;
};

}  // namespace accel::optim
