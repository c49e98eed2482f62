#include "reference/modules/parameter_cut.hpp"

#include <torch/nn/module.h>

#include "reference/core/errors.hpp"

namespace accel::parallel {

MeshAxis ParameterCut::mesh_axis() const { return axis_named(axis); }

ParameterLayout::Division ParameterCut::division() const {
  return {.axis = mesh_axis(), .placement = shard(), .index = group.rank(), .num_parts = group.size()};
}

std::vector<std::int64_t> ParameterCut::whole_sizes(const at::Tensor& part) const {
  auto sizes = part.sizes().vec();
  sizes.at(static_cast<std::size_t>(dim)) = shard().length();
  return sizes;
}

at::Tensor ParameterCut::part_of(const at::Tensor& whole) const {
  return accel::part_of(whole, shard(), {.index = group.rank(), .num_parts = group.size()});
}

at::Tensor ParameterCut::whole_of(const at::Tensor& part) const { return complete_of(part, shard(), group); }

void CutModule::check_is_complete(const char* what) const {
  check_state(cuts().empty(),
              "{}: ranks divide the parameters of this model's layers, so this rank has only its parts; use "
              "accelerator.save_model, or save_state and load_state",
              what);
}

std::map<std::string, ParameterCut> parameter_cuts(const torch::nn::Module& module) {
  std::map<std::string, ParameterCut> all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& part) {
    const auto* cut_module = dynamic_cast<const CutModule*>(&part);
    if (cut_module == nullptr) return;
    for (const auto& [name, cut] : cut_module->cuts()) all.emplace(prefix.empty() ? name : prefix + "." + name, cut);
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) add(item.key(), *item.value());
  return all;
}

std::map<std::string, DividedParameter> divided_parameters(const torch::nn::Module& module) {
  std::map<std::string, DividedParameter> divided;
  const auto parameters = module.named_parameters();
  for (const auto& [name, cut] : parameter_cuts(module)) {
    const auto* own = parameters.find(name);
    if (own == nullptr) continue;  // a layer without a bias
    divided.emplace(name, DividedParameter{.name = name,
                                           .layout = {.sizes = cut.whole_sizes(*own), .divisions = {cut.division()}},
                                           .groups = {cut.group}});
  }
  return divided;
}

}  // namespace accel::parallel
