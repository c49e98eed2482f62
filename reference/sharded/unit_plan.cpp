#include "reference/sharded/unit_plan.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <tuple>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::sharded {
namespace {

constexpr const char* kNameExpression = "a regular expression that matches complete module names";

struct PlannedModule {
  const ModuleDescription* description;
  std::optional<std::size_t> parent;
  bool is_ignored = false, is_unit = false;
  bool is_leaf = false, is_inside_leaf = false;  // of the policy's `leaves`
};

// Lists modules in the order of named_modules: a module, then its children. Parents therefore precede their
// descendants.
void list_modules(const ModuleDescription& description, std::optional<std::size_t> parent,
                  std::vector<PlannedModule>& modules) {
  const auto index = modules.size();
  modules.push_back({&description, parent});
  for (const auto& child : description.children) list_modules(child, index, modules);
}

class UnitPlanner {
 public:
  UnitPlanner(const ModelDescription& model, const ShardingOptions& options)
      : model_(model), options_(options), policy_(options.wrap) {
    list_modules(model.root, std::nullopt, modules_);
  }

  // The order matters: ignored modules cannot become units, and parameters are assigned to units. Problems of all steps
  // are reported in one message.
  ModelPlan plan(int num_shards) {
    ignore();
    choose_units();
    assign_parameters();
    check_config(problems_.empty(), "{}: {}",
                 policy_.kind == WrapPolicy::Kind::kElements ? "deepspeed_plugin" : "fsdp_plugin",
                 listed(problems_, "; "));
    ModelPlan plan{.ignored = ignored_};
    for (std::size_t index = 0; index < modules_.size(); ++index) {
      const auto held = parameters_.find(index);
      // A unit without parameters would have nothing to gather. The root stays in any case: ShardedModel uses the first
      // unit.
      if (index != 0 && (!modules_[index].is_unit || held == parameters_.end())) continue;
      plan.units.push_back(unit(*modules_[index].description,
                                held == parameters_.end() ? std::vector<std::size_t>() : held->second, num_shards));
    }
    return plan;
  }

 private:
  template <typename Matches, typename Act>
  void for_matching(const char* key, const char* what, const std::vector<std::string>& wanted, const Matches& matches,
                    const Act& act) {
    for (const auto& entry : wanted) {
      bool found = false;
      for (auto& module : modules_) {
        if (!matches(*module.description, entry)) continue;
        found = true;
        act(module);
      }
      // An entry without a match is almost always a typo, and would silently leave modules unwrapped.
      if (!found && !options_.is_stage)
        problems_.push_back(fmt::format("{}: '{}' matches no module of the model; expected {}", key, entry, what));
    }
  }

  // The complete name must match, like Python's re.fullmatch; the root, without a name, never does.
  static bool name_matches(const ModuleDescription& module, const std::string& expression) {
    return !module.name.empty() && std::regex_match(module.name, std::regex(expression));
  }

  void ignore() {
    for_matching("ignored_modules", kNameExpression, policy_.ignored, name_matches,
                 [](PlannedModule& module) { module.is_ignored = true; });
    for (auto& module : modules_) {
      // Parents come before their children in the list, so one pass reaches all descendants.
      if (module.parent && modules_[*module.parent].is_ignored) module.is_ignored = true;
    }
  }

  void choose_units() {
    const auto wrap = [](PlannedModule& module) { module.is_unit = true; };
    for_matching("wrap_modules", kNameExpression, policy_.modules, name_matches, wrap);
    if (policy_.kind == WrapPolicy::Kind::kByClass) {
      for_matching(
          "transformer_cls_names_to_wrap", "the name of a module class", policy_.classes,
          [](const auto& module, const auto& name) { return is_class(module.class_name, name); }, wrap);
    }
    if (policy_.kind == WrapPolicy::Kind::kBySize) {
      std::size_t next = 0;
      wrap_by_size(next);
    }
    if (policy_.kind == WrapPolicy::Kind::kElements) wrap_elements();
    modules_.front().is_unit = true;
    for (auto& module : modules_) {
      if (module.is_ignored) module.is_unit = false;
    }
  }

  // Number of elements under the module, counting shared parameters once.
  std::int64_t numel_under(const ModuleDescription& module, std::set<std::size_t>& seen) const {
    std::int64_t numel = 0;
    for (const auto parameter : module.parameters) {
      if (seen.insert(parameter).second) numel += model_.parameters[parameter].shape.numel();
    }
    for (const auto& child : module.children) numel += numel_under(child, seen);
    return numel;
  }

  // A container's own elements are wrapped, but not the container.
  void wrap_elements() {
    for_matching(
        "transformer_moe_cls_names", "the name of a module class", policy_.leaves,
        [](const auto& module, const auto& name) { return is_class(module.class_name, name); },
        [](PlannedModule& module) { module.is_leaf = true; });
    for (auto& module : modules_) {
      if (!module.parent) continue;
      const auto& parent = modules_[*module.parent];
      module.is_inside_leaf = parent.is_leaf || parent.is_inside_leaf;
      if (module.is_inside_leaf || !calls_its_children(*parent.description)) continue;
      std::set<std::size_t> seen;
      if (!calls_its_children(*module.description) && numel_under(*module.description, seen) >= policy_.min_num_params)
        module.is_unit = true;
    }
  }

  // Decides about the module at `next` and its descendants, and advances `next` past them. Returns how many elements
  // are in units below and including this module. Source: size_based_auto_wrap_policy. As there, MultiheadAttention is
  // neither a unit nor split, because its forward reads the parameters of its children, and containers have no forward.
  std::int64_t wrap_by_size(std::size_t& next) {
    auto& module = modules_[next++];
    std::set<std::size_t> seen;
    const auto numel = module.is_ignored ? 0 : numel_under(*module.description, seen);
    if (module.is_ignored || numel < policy_.min_num_params ||
        is_class(module.description->class_name, "MultiheadAttention")) {
      pass(*module.description, next);
      return 0;
    }
    std::int64_t wrapped = 0;
    for (std::size_t child = 0; child < module.description->children.size(); ++child) wrapped += wrap_by_size(next);
    if (numel - wrapped < policy_.min_num_params || module.description->is_container) return wrapped;
    module.is_unit = true;
    return numel;
  }

  static void pass(const ModuleDescription& module, std::size_t& next) {
    for (const auto& child : module.children) {
      ++next;
      pass(child, next);
    }
  }

  [[nodiscard]] std::size_t unit_around(std::size_t module) const {
    while (!modules_[module].is_unit && modules_[module].parent) module = *modules_[module].parent;
    return module;
  }

  // The smallest unit that contains both units. The root is a unit that contains all, so the loop ends.
  [[nodiscard]] std::size_t common_unit(std::size_t a, std::size_t b) const {
    std::set<std::size_t> around;
    for (std::optional<std::size_t> module = a; module; module = modules_[*module].parent) around.insert(*module);
    while (!around.contains(b) || !modules_[b].is_unit) b = *modules_[b].parent;
    return b;
  }

  // A shared parameter must be full whenever any of its users computes, so it belongs to a unit around all of them.
  void assign_parameters() {
    std::map<std::size_t, std::size_t> unit_of;
    std::vector<std::size_t> order;
    std::set<std::size_t> ignored;
    for (std::size_t index = 0; index < modules_.size(); ++index) {
      for (const auto parameter : modules_[index].description->parameters) {
        if (modules_[index].is_ignored) ignored.insert(parameter);
        const auto unit = unit_around(index);
        const auto [place, is_new] = unit_of.emplace(parameter, unit);
        if (is_new) {
          order.push_back(parameter);
        } else {
          // Applied for each further use, this yields the smallest unit around all users.
          place->second = common_unit(place->second, unit);
        }
      }
    }
    for (const auto parameter : order) {
      if (!ignored.contains(parameter)) parameters_[unit_of.at(parameter)].push_back(parameter);
    }
    ignored_.assign(ignored.begin(), ignored.end());
  }

  // 16 bytes in the compute dtype: torch's _flat_param.py aligns parameters for TorchInductor, and the layout must
  // agree.
  [[nodiscard]] int alignment_of(const ParameterDescription& parameter) const {
    return options_.aligned ? std::max(1, 16 / computed_element_size(parameter, options_)) : 1;
  }

  [[nodiscard]] UnitPlan unit(const ModuleDescription& module, const std::vector<std::size_t>& parameters,
                              int num_shards) const {
    // A flat buffer has one dtype, one requires_grad, and one group of ranks that hold equal parameters. Kinds are kept
    // in the order of their first parameter, not sorted: this order is the order of collectives.
    std::vector<std::tuple<std::string, bool, bool>> kinds;
    std::vector<std::vector<std::size_t>> of_kind;
    for (const auto parameter : parameters) {
      const auto& description = model_.parameters[parameter];
      const std::tuple kind(description.dtype, description.requires_grad, description.is_of_experts);
      const auto place = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
      if (place == kinds.size()) {
        kinds.push_back(kind);
        of_kind.emplace_back();
      }
      of_kind[place].push_back(parameter);
    }
    UnitPlan plan{.name = module.name, .class_name = module.class_name};
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      std::vector<ParameterShape> shapes;
      for (const auto parameter : of_kind[kind]) shapes.push_back(model_.parameters[parameter].shape);
      plan.flats.push_back(
          {FlatPlan(std::move(shapes), num_shards, alignment_of(model_.parameters[of_kind[kind].front()])),
           of_kind[kind], std::get<1>(kinds[kind]), std::get<2>(kinds[kind])});
    }
    return plan;
  }

  const ModelDescription& model_;
  const ShardingOptions& options_;
  const WrapPolicy& policy_;
  std::vector<PlannedModule> modules_;
  std::map<std::size_t, std::vector<std::size_t>> parameters_;  // of each unit, by its module
  std::vector<std::size_t> ignored_;
  std::vector<std::string> problems_;
};

}  // namespace

FlatPlan::FlatPlan(std::vector<ParameterShape> parameters, int num_shards, int alignment)
    : parameters_(std::move(parameters)), num_shards_(num_shards) {
  check_argument(num_shards >= 1, "num_shards: expected 1 or more, got {}", num_shards);
  std::int64_t end = 0;
  for (const auto& parameter : parameters_) {
    begins_.push_back((end + alignment - 1) / alignment * alignment);
    end = begins_.back() + parameter.numel();
  }
}

std::int64_t UnitPlan::numel() const {
  std::int64_t numel = 0;
  for (const auto& flat : flats) numel += flat.layout.padded_numel();
  return numel;
}

// Units carry the dotted names of their modules, so a prefix tells which unit contains which; the root has no name.
bool contains_unit(const UnitPlan& outer, const UnitPlan& inner) {
  // The dot keeps "layer1" from containing "layer10".
  return outer.name.empty() || inner.name.starts_with(outer.name + ".");
}

bool gathers_ahead(const ModelPlan& plan, const ShardingOptions& options) {
  if (options.prefetch.value_or(Prefetch::kNone) == Prefetch::kNone && !options.forward_prefetch.value_or(false))
    return false;
  const auto is_full = [&](const UnitPlan& unit, std::size_t current) {
    const auto& now = plan.units[current];
    const auto& next = plan.units[std::min(current + 1, plan.units.size() - 1)];
    return &unit == &now || &unit == &next || contains_unit(unit, now) || contains_unit(unit, next);
  };
  for (std::size_t current = 0; current < plan.units.size(); ++current) {
    std::int64_t full = 0;
    for (const auto& unit : plan.units) full += is_full(unit, current) ? unit.numel() : 0;
    if (full > options.max_live_numel) return false;
  }
  return true;
}

int computed_element_size(const ParameterDescription& parameter, const ShardingOptions& options) {
  if (!options.param_dtype) return parameter.element_size;
  return *options.param_dtype == FloatType::kFloat32 ? 4 : 2;
}

ModelPlan plan_units(const ModelDescription& model, const ShardingOptions& options, int num_shards) {
  return UnitPlanner(model, options).plan(num_shards);
}

}  // namespace accel::sharded
