#include "reference/optim/state_dict/state_dict_form.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "reference/core/errors.hpp"

namespace accel::optim {
namespace {

using Kind = StateEntry::Kind;

// The number of an int, float, bool or tensor of one element.
std::optional<double> number_of(const Value& value) {
  if (value.is<double>()) return value.as<double>();
  if (value.is<std::int64_t>()) return static_cast<double>(value.as<std::int64_t>());
  if (value.is<bool>()) return value.as<bool>() ? 1.0 : 0.0;
  if (value.is<at::Tensor>() && value.as<at::Tensor>().defined() && value.as<at::Tensor>().numel() == 1)
    return value.as<at::Tensor>().item<double>();
  return std::nullopt;
}

const Value* find(const Value::Dict& dict, const std::string& name) {
  const auto entry = dict.find(name);
  return entry == dict.end() || entry->second.is_null() ? nullptr : &entry->second;
}

}  // namespace

void StateDictProblems::throw_if_any() const {
  if (!problems_.empty())
    throw CheckpointError(
        fmt::format("the state of an optimizer does not fit; nothing was loaded:\n{}", fmt::join(problems_, "\n")));
}

bool is_implementation_entry(const std::string& name) {
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
  const auto read = value == nullptr ? 0.0 : number_of(*value);
  if (read) {
    flag = *read != 0;
  } else {
    problems.add(fmt::format("{}.{}: expected true or false, got {}", place, name, value->type_name()));
  }
}

void read_option(const Value::Dict& dict, const char* name, NumberPair& pair, const std::string& place,
                 StateDictProblems& problems) {
  const auto* value = find(dict, name);
  std::optional<double> first, second;
  if (value != nullptr && value->is<Value::List>() && value->as<Value::List>().size() == 2) {
    first = number_of(value->as<Value::List>()[0]);
    second = number_of(value->as<Value::List>()[1]);
  }
  if (first && second) {
    pair = {*first, *second};
  } else {
    problems.add(fmt::format("{}.{}: expected a list of two numbers, got {}", place, name,
                             value == nullptr ? "nothing" : value->type_name()));
  }
}

Value option_value(const NumberPair& pair) { return Value::List{std::get<0>(pair), std::get<1>(pair)}; }

Value::Dict write_tensors(const std::vector<at::Tensor>& tensors, const std::vector<StateEntry>& entries) {
  Value::Dict dict;
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    if (tensors[entry].defined()) dict[entries[entry].name] = tensors[entry];
  }
  return dict;
}

namespace {

// Python casts every scalar but `step` to the parameter's dtype, which loses digits that an uninterrupted run keeps:
// here scalars keep their dtype, so that a resume is exact.
at::Tensor placed(const at::Tensor& saved, const at::Tensor& param, const StateEntry& entry) {
  const auto device = StateEntry::is_on_cpu(entry.kind) ? at::Device(at::kCPU) : param.device();
  auto dtype = saved.scalar_type();
  if (StateEntry::is_float32(entry.kind)) dtype = at::kFloat;
  if (entry.kind == Kind::kLikeParameter && param.is_floating_point()) dtype = param.scalar_type();
  // A copy in any case: steps change it, and the saved one is the caller's.
  return saved.detach().to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor read_tensor(const Value& value, const at::Tensor& param, const StateEntry& entry, const std::string& place,
                       StateDictProblems& problems) {
  const bool is_scalar = entry.kind != Kind::kLikeParameter;
  if (is_scalar && !value.is<at::Tensor>()) {  // old versions of torch wrote plain numbers
    if (const auto number = number_of(value)) return initial_state(param, {entry.name, entry.kind, *number});
  }
  const auto expected = is_scalar ? at::IntArrayRef() : param.sizes();
  if (!value.is<at::Tensor>() || !value.as<at::Tensor>().defined()) {
    problems.add(fmt::format("{}.{}: expected a tensor of shape [{}], got {}", place, entry.name,
                             fmt::join(expected, ", "), value.type_name()));
    return {};
  }
  const auto& saved = value.as<at::Tensor>();
  if (is_scalar && saved.numel() == 1) return placed(saved.reshape({}), param, entry);
  if (saved.sizes() != expected) {
    problems.add(fmt::format("{}.{}: expected a tensor of shape [{}], got shape [{}]", place, entry.name,
                             fmt::join(expected, ", "), fmt::join(saved.sizes(), ", ")));
    return {};
  }
  return placed(saved, param, entry);
}

}  // namespace

std::vector<at::Tensor> read_tensors(const Value::Dict& dict, const at::Tensor& param,
                                     const std::vector<StateEntry>& entries, const std::string& place,
                                     StateDictProblems& problems) {
  std::vector<at::Tensor> tensors;
  std::set<std::string> known;
  for (const auto& entry : entries) {
    known.insert(entry.name);
    const auto* value = find(dict, entry.name);
    if (value == nullptr && entry.used) problems.add(fmt::format("{}.{}: missing", place, entry.name));
    tensors.push_back(value == nullptr ? at::Tensor() : read_tensor(*value, param, entry, place, problems));
  }
  for (const auto& [name, value] : dict) {
    if (!known.contains(name))
      problems.add(
          fmt::format("{}.{}: this optimizer keeps no such state; it keeps {}", place, name, fmt::join(known, ", ")));
  }
  return tensors;
}

}  // namespace accel::optim
