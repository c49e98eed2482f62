#include "reference/optim/state_dict/state_dict_codec.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

// Reads and writes single options and tensors of state dicts. Reading never throws: it adds to StateDictProblems and
// returns something usable, so that one message can list everything that does not fit.
namespace accel::optim {
namespace {

using Kind = StateEntry::Kind;

// The number in an int, float, bool or one-element tensor. Python's options may be any of these, for example a tensor
// lr.
std::optional<double> number_of(const Value& value) {
  if (value.is<double>()) return value.as<double>();
  if (value.is<std::int64_t>()) return static_cast<double>(value.as<std::int64_t>());
  if (value.is<bool>()) return value.as<bool>() ? 1.0 : 0.0;
  if (value.is<at::Tensor>() && value.as<at::Tensor>().defined() && value.as<at::Tensor>().numel() == 1)
    return value.as<at::Tensor>().item<double>();
  return std::nullopt;
}

// None counts as missing: Python writes it for entries that are not set.
const Value* find(const Value::Dict& dict, const std::string& name) {
  const auto entry = dict.find(name);
  return entry == dict.end() || entry->second.is_null() ? nullptr : &entry->second;
}

// Both return whether the value fits.
bool assign_number(double& number, const Value& value) {
  const auto read = number_of(value);
  if (read) number = *read;
  return read.has_value();
}
bool assign_number(std::optional<double>& number, const Value& value) {
  number = number_of(value);
  return number || value.is_null();
}

template <typename Numbers>
void read_numbers(const Value::Dict& dict, const char* name, Numbers& numbers, const char* expected,
                  const std::string& place, StateDictProblems& problems) {
  const auto* value = find(dict, name);
  const auto read = [&](const Value::List& list) {
    std::size_t next = 0;
    return list.size() == std::tuple_size_v<Numbers> &&
           std::apply([&](auto&... number) { return (assign_number(number, list[next++]) && ...); }, numbers);
  };
  if (value == nullptr || !value->is<Value::List>() || !read(value->as<Value::List>()))
    problems.add(fmt::format("{}.{}: expected {}, got {}", place, name, expected,
                             value == nullptr ? "nothing" : value->type_name()));
}

}  // namespace

void StateDictProblems::throw_if_any() const {
  if (!problems_.empty())
    throw CheckpointError(
        fmt::format("the state does not fit the optimizer; nothing was loaded; build the optimizer that was saved:\n{}",
                    listed(problems_, "\n")));
}

bool is_implementation_entry(const std::string& name) {
  // Entries that Python's optimizers write in addition to options, over several versions of torch.
  static constexpr std::array kNames{"params",     "foreach",        "fused",
                                     "capturable", "differentiable", "decoupled_weight_decay"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_true(const Value::Dict& dict, const char* name) {
  const auto* value = find(dict, name);
  return value != nullptr && value->is<bool>() && value->as<bool>();
}

void read_option(const Value::Dict& dict, const char* name, double& number, const std::string& place,
                 StateDictProblems& problems) {
  const auto* value = find(dict, name);
  const auto read = value == nullptr ? std::nullopt : number_of(*value);
  if (read) {
    number = *read;
  } else {
    problems.add(fmt::format("{}.{}: expected a number, got {}", place, name,
                             value == nullptr ? "nothing" : value->type_name()));
  }
}

void read_option(const Value::Dict& dict, const char* name, bool& flag, const std::string& place,
                 StateDictProblems& problems) {
  const auto* value = find(dict, name);
  // Older versions of torch lack flags that were added later, such as maximize.
  const auto read = value == nullptr ? 0.0 : number_of(*value);
  if (read) {
    flag = *read != 0;
  } else {
    problems.add(fmt::format("{}.{}: expected true or false, got {}", place, name, value->type_name()));
  }
}

void read_option(const Value::Dict& dict, const char* name, int& number, const std::string& place,
                 StateDictProblems& problems) {
  double read = number;
  read_option(dict, name, read, place, problems);
  if (read == std::floor(read) && std::abs(read) <= std::numeric_limits<int>::max()) {
    number = static_cast<int>(read);
  } else {
    problems.add(fmt::format("{}.{}: expected a whole number, got {}", place, name, read));
  }
}

void read_option(const Value::Dict& dict, const char* name, NumberPair& pair, const std::string& place,
                 StateDictProblems& problems) {
  read_numbers(dict, name, pair, "a list of two numbers", place, problems);
}

void read_option(const Value::Dict& dict, const char* name, NumberTriple& triple, const std::string& place,
                 StateDictProblems& problems) {
  read_numbers(dict, name, triple, "a list of three numbers", place, problems);
}

void read_option(const Value::Dict& dict, const char* name, OptionalNumberPair& pair, const std::string& place,
                 StateDictProblems& problems) {
  read_numbers(dict, name, pair, "a list of a number or null and a number", place, problems);
}

void read_option(const Value::Dict& dict, const char* name, std::optional<bool>& flag, const std::string& place,
                 StateDictProblems& problems) {
  flag.reset();
  if (find(dict, name) != nullptr) read_option(dict, name, flag.emplace(), place, problems);
}

void read_option(const Value::Dict& dict, const char* name, std::optional<std::string>& text, const std::string& place,
                 StateDictProblems& problems) {
  text.reset();
  const auto* value = find(dict, name);
  if (value == nullptr) return;
  if (value->is<std::string>()) {
    text = value->as<std::string>();
  } else {
    problems.add(fmt::format("{}.{}: expected a string or null, got {}", place, name, value->type_name()));
  }
}

// Tensors are not copied: a state dict refers to the optimizer's own, as in Python. Counts are the exception, since
// ints have no identity.
Value::Dict write_tensors(const std::vector<at::Tensor>& tensors, const std::vector<StateEntry>& entries) {
  Value::Dict dict;
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    if (!tensors[entry].defined()) continue;
    const bool is_count = entries[entry].kind == Kind::kCount;
    dict[entries[entry].name] = is_count ? Value(tensors[entry].item<std::int64_t>()) : Value(tensors[entry]);
  }
  return dict;
}

namespace {

// Moves a saved tensor to where the optimizer expects it. Python casts every scalar except `step` to the parameter's
// dtype, and loses digits that an uninterrupted run keeps; here scalars keep their dtype, so that resuming is exact.
at::Tensor placed(const at::Tensor& saved, const at::Tensor& param, const StateEntry& entry) {
  const auto device = StateEntry::is_on_cpu(entry.kind) ? at::Device(at::kCPU) : param.device();
  auto dtype = saved.scalar_type();
  if (StateEntry::is_float32(entry.kind)) dtype = at::kFloat;
  if (entry.kind == Kind::kCount) dtype = at::kLong;
  if (!StateEntry::is_scalar(entry.kind) && param.is_floating_point()) dtype = param.scalar_type();
  // Always a copy: steps change the tensor, and the saved one belongs to the caller.
  return saved.detach().to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
}

// Undefined if the value does not fit.
at::Tensor read_tensor(const Value& value, const at::Tensor& param, const StateEntry& entry, const std::string& place,
                       StateDictProblems& problems) {
  const bool is_scalar = StateEntry::is_scalar(entry.kind);
  if (is_scalar && !value.is<at::Tensor>()) {  // older versions of torch wrote plain numbers
    if (const auto number = number_of(value)) return initial_state(param, {entry.name, entry.kind, *number});
  }
  const auto expected = entry.shape_for(param);
  if (!value.is<at::Tensor>() || !value.as<at::Tensor>().defined()) {
    problems.add(fmt::format("{}.{}: expected a tensor of shape [{}], got {}", place, entry.name,
                             fmt::join(expected, ", "), value.type_name()));
    return {};
  }
  const auto& saved = value.as<at::Tensor>();
  // A one-element tensor of any shape is accepted as a scalar.
  if (is_scalar && saved.numel() == 1) return placed(saved.reshape({}), param, entry);
  if (saved.sizes() != expected) {
    problems.add(fmt::format("{}.{}: expected a tensor of shape [{}], got shape [{}]", place, entry.name,
                             fmt::join(expected, ", "), fmt::join(saved.sizes(), ", ")));
    return {};
  }
  return placed(saved, param, entry);
}

}  // namespace

// The result has one tensor per entry, in the order of `entries`, since steps access state by that order.
std::vector<at::Tensor> read_tensors(const Value::Dict& dict, const at::Tensor& param,
                                     const std::vector<StateEntry>& entries, const std::string& place,
                                     StateDictProblems& problems) {
  std::vector<at::Tensor> tensors;
  std::set<std::string> known;
  for (const auto& entry : entries) {
    if (!entry.exists_for(param)) {
      tensors.emplace_back();
      continue;
    }
    known.insert(entry.name);
    const auto* value = find(dict, entry.name);
    // An entry that the options do not use may still be present: they may have changed since.
    if (value == nullptr && entry.used) problems.add(fmt::format("{}.{}: missing", place, entry.name));
    tensors.push_back(value == nullptr ? at::Tensor() : read_tensor(*value, param, entry, place, problems));
  }
  for (const auto& [name, value] : dict) {
    if (!known.contains(name))
      problems.add(
          fmt::format("{}.{}: unexpected entry; this optimizer's state has {}", place, name, fmt::join(known, ", ")));
  }
  return tensors;
}

}  // namespace accel::optim
