#include "reference/offload/dispatch_units.hpp"

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::offload {
namespace {

class UnitPlanner {
 public:
  UnitPlanner(const ModelDescription& model, const UnitOptions& options)
      : model_(model),
        options_(options),
        open_classes_(options.preload_module_classes),
        open_names_(options.called_modules) {}

  // Unit 0 is the model itself. What remains in the open lists matched nothing, and is reported as a likely typo.
  std::vector<Unit> plan() {
    units_.push_back({""});
    add(model_.root, 0, /*is_preloaded=*/false);
    std::vector<std::string> problems;
    for (const auto& name : open_classes_)
      problems.push_back(fmt::format(
          "preload_module_classes: the model has no module of class '{}'; expected the class of a module", name));
    for (const auto& name : open_names_)
      problems.push_back(
          fmt::format("called_modules: the model has no module named '{}'; expected a name of named_modules()", name));
    check_argument(problems.empty(), "{}", listed(problems, "; "));
    // A unit without tensors, such as a ReLU in a Sequential, has nothing to load.
    std::erase_if(units_, [](const Unit& unit) { return unit.tensors.empty(); });
    return std::move(units_);
  }

 private:
  // Adds a module's tensors to `unit`, the innermost unit around it. Children that are called separately start new
  // units.
  void add(const ModuleDescription& module, std::size_t unit, bool is_preloaded) {
    // `|=` without a short circuit: the name must be removed from the open ones even inside a preloaded module.
    is_preloaded |=
        std::erase_if(open_classes_, [&](const auto& name) { return is_class(module.class_name, name); }) > 0 ||
        is_of(module, options_.preload_module_classes);
    for (const auto parameter : module.parameters) add(model_.parameters[parameter].shape.name, unit);
    for (const auto& buffer : module.buffers) add(model_.buffers[buffer.index].shape.name, unit);
    // Other modules call their children directly, where no hook can load anything.
    for (const auto& child : module.children) {
      const bool is_called = std::erase(open_names_, child.name) > 0 || calls_its_children(module);
      auto of_child = unit;
      if (is_called && !is_preloaded) {
        of_child = units_.size();
        units_.push_back({child.name});
      }
      add(child, of_child, is_preloaded);
    }
  }
  void add(const std::string& tensor, std::size_t unit) {
    auto& tensors = units_[unit].tensors;
    // A tensor that is shared inside a unit is needed once; between units it belongs to each of them.
    if (std::find(tensors.begin(), tensors.end(), tensor) == tensors.end()) tensors.push_back(tensor);
  }
  static bool is_of(const ModuleDescription& module, const std::vector<std::string>& classes) {
    return std::any_of(classes.begin(), classes.end(),
                       [&](const auto& name) { return is_class(module.class_name, name); });
  }

  const ModelDescription& model_;
  const UnitOptions& options_;
  std::vector<std::string> open_classes_, open_names_;
  std::vector<Unit> units_;
};

}  // namespace

std::vector<Unit> plan_units(const ModelDescription& model, const UnitOptions& options) {
  return UnitPlanner(model, options).plan();
}

}  // namespace accel::offload
