#include "reference/prepared/registered_parameters.hpp"

#include <torch/nn/module.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {
namespace {

// Module's own accessors copy names, which would take longer than the comparison.
struct Registry : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) { return module.*(&Registry::parameters_); }
};

std::map<std::string, at::Tensor> by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace(item.key(), item.value());
  return parameters;
}

}  // namespace

RegisteredParameters::RegisteredParameters(const torch::nn::Module& module)
    : module_(&module), parameters_(by_name(module)) {
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add(*part);
}

void RegisteredParameters::add(const torch::nn::Module& module) {
  Part part{.module = &module};
  for (const auto& parameter : Registry::of(module)) part.parameters.push_back(parameter.value().unsafeGetTensorImpl());
  for (const auto& child : module.children()) part.children.push_back(child.get());
  parts_.push_back(std::move(part));
}

bool RegisteredParameters::contains(const at::Tensor& parameter) const {
  return std::ranges::any_of(parameters_, [&](const auto& item) { return item.second.is_same(parameter); });
}

void RegisteredParameters::check_unchanged(const char* what) {
  if (std::ranges::all_of(parts_, is_unchanged)) return;
  const auto found = changes();
  if (found.empty()) {  // a module without parameters, such as Dropout
    *this = RegisteredParameters(*module_);
    return;
  }
  throw StateError(fmt::format(
      "{}: parameters of the model have changed since `prepare`: {}. Only the tensors that were prepared are "
      "averaged and stepped: write new values in place, or prepare the module and its optimizer again",
      what, listed(found, ", ")));
}

bool RegisteredParameters::is_unchanged(const Part& part) {
  const auto same_tensor = [](const auto& item, const auto* impl) {
    return item.value().unsafeGetTensorImpl() == impl;
  };
  const auto same_module = [](const auto& child, const auto* module) { return child.get() == module; };
  return std::ranges::equal(Registry::of(*part.module), part.parameters, same_tensor) &&
         std::ranges::equal(part.module->children(), part.children, same_module);
}

std::vector<std::string> RegisteredParameters::changes() const {
  const auto now = by_name(*module_);
  std::vector<std::string> changes;
  for (const auto& [name, parameter] : now) {
    const auto before = parameters_.find(name);
    if (before == parameters_.end())
      changes.push_back(fmt::format("'{}' was added", name));
    else if (!before->second.is_same(parameter))
      changes.push_back(fmt::format("'{}' was replaced", name));
  }
  for (const auto& [name, parameter] : parameters_) {
    if (!now.contains(name)) changes.push_back(fmt::format("'{}' was removed", name));
  }
  return changes;
}

}  // namespace accel
