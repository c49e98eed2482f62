#include "reference/modules/described_model.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <set>
#include <unordered_map>

#include "reference/modules/parameter_cut.hpp"

namespace accel {
namespace {

using torch::nn::Module;

// Walks modules in the order of Python's named_modules and tensors in that of named_parameters: optimizer states,
// buckets and checkpoints rely on this order being the same in both languages.
class Describer {
 public:
  Describer(DescribedModel& model, Repeats repeats) : model_(model), repeats_(repeats) {}

  ModuleDescription describe(const std::shared_ptr<Module>& module, const std::string& name) {
    seen_.insert(module.get());
    model_.modules.push_back({name, module});
    ModuleDescription description{.name = name, .class_name = module->name(), .is_container = is_container(*module)};
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      const auto full = description.name_of(item.key());
      model_.names.emplace_back(full, item.value());
      description.parameters.push_back(
          parameters_.index_of(full, item.value(), model_.description.parameters, &model_.parameters));
      description.keys.push_back(item.key());
    }
    for (const auto& item : module->named_buffers(/*recurse=*/false)) {
      const auto full = description.name_of(item.key());
      model_.buffers.emplace_back(full, item.value());
      description.buffers.push_back(
          {item.key(), buffers_.index_of(full, item.value(), model_.description.buffers, nullptr)});
    }
    for (const auto& item : module->named_children()) {
      // As in named_modules, a repeated module is skipped unless the caller needs all names, for example for a device
      // map.
      if (repeats_ == Repeats::kEverywhere || !seen_.contains(item.value().get()))
        description.children.push_back(describe(item.value(), description.name_of(item.key())));
    }
    return description;
  }

 private:
  // Containers without a forward. Sequential is not among them: it can be called, and therefore be a unit.
  static bool is_container(const Module& module) {
    return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
           dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
  }

  // Numbers each tensor once, under its first name. Identity is the TensorImpl's address: shared parameters are the
  // same object, while different parameters may share memory.
  struct Index {
    std::size_t index_of(const std::string& name, const at::Tensor& tensor,
                         std::vector<ParameterDescription>& descriptions, std::vector<at::Tensor>* tensors) {
      const auto [place, is_new] = indices.emplace(tensor.unsafeGetTensorImpl(), descriptions.size());
      if (is_new) {
        if (tensors != nullptr) tensors->push_back(tensor);
        descriptions.push_back({.shape = {name, tensor.sizes().vec()},
                                .dtype = c10::toString(tensor.scalar_type()),
                                .element_size = static_cast<int>(tensor.element_size()),
                                .requires_grad = tensor.requires_grad()});
      }
      return place->second;
    }
    std::unordered_map<const c10::TensorImpl*, std::size_t> indices;
  };

  DescribedModel& model_;
  Repeats repeats_;
  std::set<const Module*> seen_;
  Index parameters_, buffers_;
};

}  // namespace

DescribedModel describe(const std::shared_ptr<torch::nn::Module>& module, Repeats repeats) {
  DescribedModel model;
  auto root = Describer(model, repeats).describe(module, "");
  model.description.root = std::move(root);
  const auto cuts = parallel::parameter_cuts(*module);
  for (auto& parameter : model.description.parameters) {
    const auto cut = cuts.find(parameter.shape.name);
    parameter.is_of_experts = cut != cuts.end() && cut->second.mesh_axis() == kExpertAxis;
  }
  return model;
}

}  // namespace accel
