#pragma once

#include <rapidcheck.h>

#include <set>
#include <string>
#include <vector>

#include "reference/offload/device_map.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {

/// A random model: modules up to four levels deep, tensors of several dtypes, some of them shared, and some classes
/// that may not be split.
class AnyModel {
 public:
  AnyModel() {
    model.root = module("", 0);
    for (int i = pick(0, 3); i > 0; --i) share();
  }
  ModelDescription model;

 private:
  ModuleDescription module(const std::string& name, int depth) {
    ModuleDescription made{
        .name = name,
        .class_name =
            "net::" + *rc::gen::element(std::string("Block"), std::string("Layer"), std::string("Part")) + "Impl"};
    for (int i = pick(0, depth == 0 ? 2 : 3); i > 0; --i) {
      made.keys.push_back("w" + std::to_string(i));
      made.parameters.push_back(model.parameters.size());
      model.parameters.push_back(tensor(made.name_of(made.keys.back())));
    }
    for (int i = pick(0, 2); i > 0; --i) {
      made.buffers.push_back({"b" + std::to_string(i), model.buffers.size()});
      model.buffers.push_back(tensor(made.name_of(made.buffers.back().key)));
    }
    for (int i = depth == 4 ? 0 : pick(0, depth == 0 ? 6 : 4); i > 0; --i)
      made.children.push_back(module(made.name_of("m" + std::to_string(i)), depth + 1));
    return made;
  }
  static ParameterDescription tensor(const std::string& name) {
    const auto [dtype, size] =
        *rc::gen::element(std::pair("Float", 4), std::pair("Half", 2), std::pair("Long", 8), std::pair("Bool", 1));
    return {.shape = {name, {pick(0, 40), pick(1, 5)}}, .dtype = dtype, .element_size = size};
  }

  // Makes one module's parameter also another module's.
  void share() {
    std::vector<ModuleDescription*> modules;
    list(model.root, modules);
    std::erase_if(modules, [](const auto* module) { return module->parameters.empty(); });
    if (modules.size() < 2) return;
    auto& from = *modules[pick<std::size_t>(0, modules.size())];
    auto& to = *modules[pick<std::size_t>(0, modules.size())];
    to.parameters[0] = from.parameters[0];
    rename();
  }
  static void list(ModuleDescription& module, std::vector<ModuleDescription*>& modules) {
    modules.push_back(&module);
    for (auto& child : module.children) list(child, modules);
  }
  // Numbers and names the tensors by their first places, and removes those without a place.
  void rename() {
    std::vector<ModuleDescription*> modules;
    list(model.root, modules);
    std::vector<ParameterDescription> parameters;
    std::map<std::size_t, std::size_t> numbers;
    for (auto* module : modules) {
      for (std::size_t i = 0; i < module->keys.size(); ++i) {
        const auto [place, is_new] = numbers.emplace(module->parameters[i], parameters.size());
        if (is_new) {
          parameters.push_back(model.parameters[module->parameters[i]]);
          parameters.back().shape.name = module->name_of(module->keys[i]);
        }
        module->parameters[i] = place->second;
      }
    }
    model.parameters = std::move(parameters);
  }
};

}  // namespace accel::testing
