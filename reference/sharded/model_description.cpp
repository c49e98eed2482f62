#include "reference/sharded/model_description.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <set>
#include <unordered_map>

namespace accel::sharded {
namespace {

using torch::nn::Module;

class Describer {
 public:
  explicit Describer(DescribedModel& model) : model_(model) {}

  ModuleDescription describe(const std::shared_ptr<Module>& module, const std::string& name) {
    seen_.insert(module.get());
    model_.modules.push_back({name, module});
    ModuleDescription description{.name = name, .class_name = module->name(), .is_container = is_container(*module)};
    const auto prefix = name.empty() ? "" : name + ".";
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      model_.names.emplace_back(prefix + item.key(), item.value());
      description.parameters.push_back(index_of(prefix + item.key(), item.value()));
    }
    for (const auto& item : module->named_buffers(/*recurse=*/false)) model_.buffers.emplace_back(prefix + item.key(), item.value());
    for (const auto& item : module->named_children()) {
      if (!seen_.contains(item.value().get())) description.children.push_back(describe(item.value(), prefix + item.key()));
    }
    return description;
  }

 private:
  static bool is_container(const Module& module) {
    return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr || dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
  }

  std::size_t index_of(const std::string& name, const at::Tensor& parameter) {
    const auto [place, is_new] = indices_.emplace(parameter.unsafeGetTensorImpl(), model_.parameters.size());
    if (is_new) {
      model_.parameters.push_back(parameter);
      model_.description.parameters.push_back(
          {.shape = {name, parameter.sizes().vec()}, .dtype = c10::toString(parameter.scalar_type()),
           .element_size = static_cast<int>(parameter.element_size()), .requires_grad = parameter.requires_grad()});
    }
    return place->second;
  }

  DescribedModel& model_;
  std::set<const Module*> seen_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> indices_;
};

}  // namespace

DescribedModel describe(const std::shared_ptr<torch::nn::Module>& module) {
  DescribedModel model;
  auto root = Describer(model).describe(module, "");
  model.description.root = std::move(root);
  return model;
}

}  // namespace accel::sharded
