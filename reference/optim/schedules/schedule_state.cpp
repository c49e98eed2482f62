#include "reference/optim/schedules/schedule_state.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

// Conversions between a schedule's members and the values of a state dict, and the collection of problems. Reading
// defers all assignments to `apply`, so that a state that does not fit changes nothing.
namespace accel::optim {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  // bound for counts, so that further counting cannot overflow
constexpr std::int64_t kMostLong = std::int64_t{1} << 60;

// A bool is not accepted as an integer, unlike in Python: in a state dict that would be a mistake.
bool read_integer(const Value& value, std::int64_t most, auto& target) {
  if (!value.is<std::int64_t>() || value.as<std::int64_t>() < -most || value.as<std::int64_t>() > most) return false;
  target = static_cast<std::remove_reference_t<decltype(target)>>(value.as<std::int64_t>());
  return true;
}

template <typename T>
Value list_value(const std::vector<T>& values) {
  return Value::List(values.begin(), values.end());
}

template <typename T>
bool read_list(const Value& value, std::vector<T>& target) {
  if (!value.is<Value::List>()) return false;
  target.clear();
  for (const auto& item : value.as<Value::List>()) {
    if (!read_state(item, target.emplace_back())) return false;
  }
  return true;
}

}  // namespace

// `known` is moved only after the text has been built from it.
Rule<std::string> one_of(std::vector<std::string> known) {
  auto expected = fmt::format("{}", fmt::join(known, " or "));
  return {[known = std::move(known)](const std::string& text) {
            return std::find(known.begin(), known.end(), text) != known.end();
          },
          std::move(expected)};
}

Value state_value(bool value) { return value; }
Value state_value(int value) { return value; }
Value state_value(std::int64_t value) { return value; }
Value state_value(double value) { return value; }
Value state_value(const std::string& value) { return value; }
Value state_value(const std::optional<double>& value) { return value ? Value(*value) : Value(); }
Value state_value(const std::vector<int>& values) { return list_value(values); }
Value state_value(const std::vector<double>& values) { return list_value(values); }
// MultiStepLR's Counter of milestones.
Value state_value(const std::map<int, int>& values) {
  Value::Dict dict;
  for (const auto& [key, value] : values) dict.emplace(std::to_string(key), value);
  return dict;
}

bool read_state(const Value& value, bool& target) {
  if (!value.is<bool>()) return false;
  target = value.as<bool>();
  return true;
}

bool read_state(const Value& value, int& target) { return read_integer(value, kMost, target); }
bool read_state(const Value& value, std::int64_t& target) { return read_integer(value, kMostLong, target); }

// Python often stores a float as int, for example a gamma of 1.
bool read_state(const Value& value, double& target) {
  if (!value.is<double>() && !value.is<std::int64_t>()) return false;
  target = value.is<double>() ? value.as<double>() : static_cast<double>(value.as<std::int64_t>());
  return true;
}

bool read_state(const Value& value, std::string& target) {
  if (!value.is<std::string>()) return false;
  target = value.as<std::string>();
  return true;
}

// null is a valid value: Python's None.
bool read_state(const Value& value, std::optional<double>& target) {
  target.reset();
  return value.is_null() || read_state(value, target.emplace());
}

bool read_state(const Value& value, std::vector<int>& target) { return read_list(value, target); }
bool read_state(const Value& value, std::vector<double>& target) { return read_list(value, target); }

// from_chars, because std::stoi would accept trailing characters and throw for other text.
bool read_state(const Value& value, std::map<int, int>& target) {
  if (!value.is<Value::Dict>()) return false;
  target.clear();
  for (const auto& [key, item] : value.as<Value::Dict>()) {
    int number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size() || !read_state(item, target[number])) return false;
  }
  return true;
}

StateFields::StateFields(const Value& read, std::string path) : read_(&read), path_(std::move(path)) {}

// A missing entry is a problem even if the schedule has a default: Python's dicts always contain all entries.
const Value* StateFields::find(const std::string& key) {
  if (read_->contains(key)) return &read_->at(key);
  problem(key, "missing");
  return nullptr;
}

// For entries that Python expects in the dict but that have no counterpart here, such as functions.
void StateFields::constant(const std::string& key, Value value) {
  if (writes()) write(key, std::move(value));
}

void StateFields::problem(const std::string& key, const std::string& text) {
  problems_.push_back(path_ + key + ": " + text);
}

// Problems and changes of the part are added to this object's, so that one `apply` covers both.
void StateFields::part(const Value& value, const std::string& path, const std::function<void(StateFields&)>& read) {
  StateFields fields(value, path_ + path);
  read(fields);
  problems_.insert(problems_.end(), fields.problems_.begin(), fields.problems_.end());
  changes_.insert(changes_.end(), fields.changes_.begin(), fields.changes_.end());
}

void StateFields::apply(const std::string& of) {
  if (!problems_.empty())
    throw CheckpointError(
        fmt::format("the state does not fit {}: {}; load the state of a schedule with the same class and options", of,
                    listed(problems_, "; ")));
  for (const auto& change : changes_) change();
}

// Short, since it is part of a message: a list is shown by its length only.
std::string StateFields::shown(const Value& value) {
  if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
  if (value.is<std::int64_t>()) return fmt::format("{}", value.as<std::int64_t>());
  if (value.is<double>()) return fmt::format("{}", value.as<double>());
  if (value.is<std::string>()) return fmt::format("'{}'", value.as<std::string>());
  if (value.is<Value::List>()) return fmt::format("a list of {}", value.as<Value::List>().size());
  return value.type_name();
}

}  // namespace accel::optim
