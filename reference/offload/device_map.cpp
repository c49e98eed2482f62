#include "reference/offload/device_map.hpp"

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/offload/module_sizes.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Collects the names of all tensors, and those of all tensors and modules.
void list_tensors(const ModuleDescription& module, std::vector<std::string>& tensors, std::set<std::string>& names) {
  names.insert(module.name);
  const auto add = [&](const std::string& key) {
    tensors.push_back(module.name_of(key));
    names.insert(tensors.back());
  };
  for (const auto& key : module.keys) add(key);
  for (const auto& buffer : module.buffers) add(buffer.key);
  for (const auto& child : module.children) list_tensors(child, tensors, names);
}

// The part of `name` up to the first dot after `begin` characters.
std::string level_of(const std::string& name, std::size_t begin) { return name.substr(0, name.find('.', begin)); }

void clean_within(DeviceMap& device_map, const std::string& module) {
  const auto prefix = module.empty() ? "" : module + ".";
  // The map is sorted, so entries with a common prefix are adjacent.
  const auto begin = device_map.lower_bound(prefix);
  auto end = begin;
  std::set<MapDevice> devices;
  std::size_t count = 0;
  for (; end != device_map.end() && end->first.starts_with(prefix); ++end, ++count) devices.insert(end->second);
  // A single entry stays: replacing "a.weight" by "a" would also cover tensors of `a` that have no entry.
  if (devices.size() == 1 && count > 1) {
    device_map.erase(begin, end);
    device_map.insert_or_assign(module, *devices.begin());
    return;
  }
  std::set<std::string> children;
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->first.size() > prefix.size()) children.insert(level_of(entry->first, prefix.size()));
  }
  for (const auto& child : children) clean_within(device_map, child);
}

}  // namespace

// Source of the warning: accelerate/utils/modeling.py, infer_auto_device_map.
DeviceMap infer_auto_device_map(const ModelDescription& model, const DeviceMapOptions& options) {
  auto plan = plan_device_map(model, options);
  if (!plan.offloaded_buffers_fit)
    warn_once(
        fmt::format("infer_auto_device_map: the buffers of offloaded modules, {} bytes, fit on no GPU; set "
                    "offload_buffers if memory runs out",
                    plan.offloaded_buffer_bytes));
  return std::move(plan.device_map);
}

DeviceMap clean_device_map(DeviceMap device_map) {
  clean_within(device_map, "");
  return device_map;
}

MapDevice device_of(const DeviceMap& device_map, const std::string& name) {
  // From the name itself outwards to "", so that the most specific entry wins.
  for (auto covering = name;; covering.resize(covering.rfind('.') == std::string::npos ? 0 : covering.rfind('.'))) {
    if (const auto found = device_map.find(covering); found != device_map.end()) return found->second;
    check_argument(
        !covering.empty(),
        "device_map: '{}' has no device; add an entry for it, for a module that contains it, or for \"\" (all)", name);
  }
}

// An uncovered tensor would have no device during dispatch; an unknown entry is most likely a typo.
void check_device_map(const ModelDescription& model, const DeviceMap& device_map) {
  std::vector<std::string> tensors, problems;
  std::set<std::string> names;
  list_tensors(model.root, tensors, names);
  for (const auto& [name, device] : device_map) {
    if (!names.contains(name)) problems.push_back(fmt::format("'{}' is not a module or tensor of the model", name));
    // What remains after all entries is covered by none.
    std::erase_if(tensors, [&](const auto& tensor) { return offload::is_within(tensor, name); });
  }
  for (const auto& tensor : tensors) problems.push_back(fmt::format("'{}' has no device", tensor));
  check_argument(problems.empty(),
                 "device_map: {}; expected names of the model's modules or tensors, and an entry for every tensor "
                 "(\"\" covers all)",
                 listed(problems, "; "));
}

}  // namespace accel
