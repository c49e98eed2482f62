#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/core/errors.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/offload/module_sizes.hpp"

// load_checkpoint_and_dispatch: plans a device map, loads the checkpoint, and installs the hooks, in this order, so
// that errors in the map are reported before any file is read.
namespace accel::offload {
namespace {

// Devices are ordered GPUs, CPU, disk: the first GPU if there is one, else the CPU.
MapDevice main_device_of(const DeviceMap& device_map) {
  MapDevice main = "cpu";
  for (const auto& [name, device] : device_map) main = std::min(main, device);
  return main;
}

// The memory that a plan needs on its main device.
struct Need {
  std::int64_t resident = 0;  // tensors that stay there
  std::int64_t running = 0;   // peak of a running offloaded unit together with the units that contain it
  std::int64_t next = 0;      // the largest unit that may be read meanwhile
};

Need need_of(const ModelDescription& model, const std::vector<Unit>& units, const DeviceMap& device_map,
             const DeviceMapOptions& options) {
  const auto main = main_device_of(device_map);
  const auto sizes = compute_module_sizes(model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes});
  const auto buffers = compute_module_sizes(
      model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes, .buffers_only = true});
  Need need;
  std::vector<std::int64_t> brought;
  for (const auto& unit : units) {
    brought.push_back(0);
    for (const auto& name : unit.tensors) {
      // Buffers of offloaded units stay on the main device unless they are offloaded, too.
      const bool stays = device_of(device_map, name) == main || (!options.offload_buffers && buffers.of(name) > 0);
      if (!stays && !device_of(device_map, name).is_gpu()) brought.back() += sizes.of(name);
      if (stays) need.resident += sizes.of(name);
    }
    // Units precede the units inside them, so all that contain this one have been counted.
    std::int64_t around = 0;
    for (std::size_t i = 0; i < brought.size(); ++i) around += is_within(unit.name, units[i].name) ? brought[i] : 0;
    need.running = std::max(need.running, around);
    need.next = std::max(need.next, brought.back());
  }
  return need;
}

void check_choice(const std::string& choice) {
  constexpr std::array kChoices{"auto", "balanced", "balanced_low_0", "sequential"};
  check_argument(std::find(kChoices.begin(), kChoices.end(), choice) != kChoices.end(),
                 "device_map: got '{}'; expected one of {}, or a map", choice, fmt::join(kChoices, ", "));
}

}  // namespace

PrefetchPlan plan_with_prefetch(const ModelDescription& model, const DeviceMapOptions& given,
                                const std::vector<std::string>& preload_module_classes,
                                const std::vector<std::string>& called_modules) {
  const auto units = plan_units(model, {preload_module_classes, called_modules});
  const auto limits = get_max_memory(given.max_memory);
  // Lowers the planner's limit for the main device until the plan keeps within the real one. If even an empty main
  // device leaves no room for two units, prefetching is given up and the search starts again.
  for (const bool prefetch : {true, false}) {
    auto options = given;
    options.max_memory = limits;
    while (true) {
      auto device_map = infer_auto_device_map(model, options);
      const auto need = need_of(model, units, device_map, options);
      const auto limit = limits.find(main_device_of(device_map));
      const auto excess = limit == limits.end() || need.running == 0
                              ? 0
                              : need.resident + need.running + (prefetch ? need.next : 0) - limit->second.bytes;
      if (excess <= 0) return {std::move(device_map), prefetch};
      auto& planned = options.max_memory->at(limit->first).bytes;
      // Without prefetching, a unit is loaded alone, however large it is.
      if (planned == 0 && !prefetch) return {std::move(device_map), false};
      if (planned == 0) break;
      // `planned` strictly decreases, so the loop ends.
      planned = std::max<std::int64_t>(0, planned - excess);
    }
  }
  throw InternalError("plan_with_room: the search for a device map did not end");
}

Dispatched load_and_dispatch(const std::shared_ptr<torch::nn::Module>& module, const std::string& checkpoint,
                             const LoadAndDispatchOptions& options) {
  LoadCheckpointOptions load{.strict = options.strict,
                             .offload_folder = options.offload_folder,
                             .dtype = options.dtype,
                             .offload_buffers = options.offload_buffers};
  DispatchOptions dispatching{.offload_buffers = options.offload_buffers,
                              .preload_module_classes = options.preload_module_classes,
                              .called_modules = options.called_modules};
  if (const auto* map = std::get_if<DeviceMap>(&options.device_map)) load.device_map = *map;
  if (const auto* choice = std::get_if<std::string>(&options.device_map)) {
    check_choice(*choice);
    // With all names of repeated modules, as in Python, whose plan and keys this must reproduce.
    const auto model = describe(module, Repeats::kEverywhere).description;
    DeviceMapOptions planning{.max_memory = options.max_memory,
                              .no_split_module_classes = options.no_split_module_classes,
                              .dtype = options.dtype,
                              .offload_buffers = options.offload_buffers};
    // "auto" means balanced, as in Accelerate.
    if (*choice != "sequential") {
      planning.max_memory = get_balanced_memory(model, {.max_memory = options.max_memory,
                                                        .no_split_module_classes = options.no_split_module_classes,
                                                        .dtype = options.dtype,
                                                        .low_zero = *choice == "balanced_low_0"});
    }
    auto plan = plan_with_prefetch(model, planning, options.preload_module_classes, options.called_modules);
    load.device_map = std::move(plan.device_map);
    dispatching.prefetch = plan.prefetch;
  }
  if (load.device_map) check_device_map(describe(module, Repeats::kEverywhere).description, *load.device_map);
  // Tensors on disk are not copied: the index refers to the checkpoint's files.
  dispatching.offload_index = load_checkpoint_in_model(*module, checkpoint, load);
  if (!load.device_map) return {};
  return {dispatch(module, *load.device_map, dispatching), *load.device_map};
}

}  // namespace accel::offload
