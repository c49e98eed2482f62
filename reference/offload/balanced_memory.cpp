#include <algorithm>
#include <iterator>
#include <set>

#include "reference/offload/device_map.hpp"
#include "reference/offload/module_sizes.hpp"

// get_balanced_memory: limits per GPU with which the greedy planner of device_map_plan.cpp spreads a model evenly.
// Pure; every quirk of the formulas is Accelerate's, so that both give the same device map. Source:
// accelerate/utils/modeling.py, get_balanced_memory.
namespace accel {
namespace {

using Sizes = std::vector<std::pair<std::string, std::int64_t>>;

// The names in `sizes` that contain no other name.
std::set<std::string> leaves_of(const Sizes& sizes) {
  std::set<std::string> leaves, parents;
  for (const auto& [name, bytes] : sizes) {
    leaves.insert(name);
    if (const auto dot = name.rfind('.'); dot != std::string::npos) parents.insert(name.substr(0, dot));
  }
  // The root has no name, and its children's names have no dot, so it is not among the parents.
  leaves.erase("");
  for (const auto& parent : parents) leaves.erase(parent);
  return leaves;
}

// Null if `name` is a tensor.
const ModuleDescription* module_named(const ModuleDescription& module, const std::string& name) {
  if (module.name == name) return &module;
  for (const auto& child : module.children) {
    if (offload::is_within(name, child.name)) return module_named(child, name);
  }
  return nullptr;
}

// The largest size among the first modules of each class. Like Accelerate, it looks at the first module of a class
// only, in the order of `sizes`, even if a later one is larger.
std::int64_t largest_unsplit(const ModelDescription& model, const Sizes& sizes,
                             const std::vector<std::string>& classes) {
  std::set<std::string> open(classes.begin(), classes.end());
  std::int64_t largest = 0;
  for (const auto& [name, bytes] : sizes) {
    const auto* module = name.empty() ? nullptr : module_named(model.root, name);
    if (module == nullptr) continue;
    const auto found = std::find_if(open.begin(), open.end(),
                                    [&](const auto& wanted) { return is_class(module->class_name, wanted); });
    if (found == open.end()) continue;
    largest = std::max(largest, bytes);
    open.erase(found);
  }
  return largest;
}

// The mean size of modules without submodules: first removes the tensors, then takes the leaves of what is left.
std::int64_t mean_of_final_modules(const Sizes& sizes) {
  const auto tensors = leaves_of(sizes);
  Sizes modules;
  std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(modules),
               [&](const auto& entry) { return !tensors.contains(entry.first); });
  const auto leaves = leaves_of(modules);
  std::int64_t total = 0;
  for (const auto& [name, bytes] : modules) total += leaves.contains(name) ? bytes : 0;
  return total / std::max<std::int64_t>(1, static_cast<std::int64_t>(leaves.size()));
}

}  // namespace

MaxMemory get_balanced_memory(const ModelDescription& model, const BalancedMemoryOptions& options) {
  // Devices with a limit of 0 are excluded by the user and do not count.
  auto limits = get_max_memory(options.max_memory);
  std::vector<std::int64_t*> gpus;
  for (auto& [device, size] : limits) {
    if (device.is_gpu() && size.bytes > 0) gpus.push_back(&size.bytes);
  }
  if (gpus.empty()) return limits;
  if (gpus.size() == 1) {
    // Leaves a tenth for activations.
    if (!options.max_memory) *gpus.front() = static_cast<std::int64_t>(0.9 * static_cast<double>(*gpus.front()));
    return limits;
  }
  const auto sizes = compute_module_sizes(model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes});
  const auto total = sizes.of("");
  const auto num_gpus = static_cast<std::int64_t>(gpus.size());
  // Layers do not divide evenly between GPUs. The share is larger by about one layer, so that nothing is left over
  // after the last GPU but one.
  const auto layer = std::max(largest_unsplit(model, sizes.entries(), options.no_split_module_classes),
                              mean_of_final_modules(sizes.entries()));
  const auto share = total / (options.low_zero ? num_gpus - 1 : num_gpus) +
                     static_cast<std::int64_t>(1.25 * static_cast<double>(layer));
  for (std::size_t i = options.low_zero ? 1 : 0; i + 1 < gpus.size(); ++i)
    *gpus[i] = std::min(share, *gpus[i]);  // the last one keeps its limit, to receive the rest
  if (options.low_zero) {
    // balanced_low_0: the first GPU only gets what the others cannot hold, because generation needs it for the outputs.
    auto left = total;
    for (std::size_t i = 1; i < gpus.size(); ++i) left -= *gpus[i];
    *gpus[0] = std::clamp<std::int64_t>(left, 0, *gpus[0]);
  }
  return limits;
}

}  // namespace accel
