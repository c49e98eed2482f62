#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/core/errors.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/offload/module_sizes.hpp"

namespace accel::offload {
namespace {

MapDevice main_device_of(const DeviceMap& device_map) {
  MapDevice main = "cpu";
  for (const auto& [name, device] : device_map) main = std::min(main, device);
  return main;
}

// What a plan needs of its main device's memory.
struct Need {
  std::int64_t resident = 0;  // stays there
  std::int64_t running = 0;   // of offloaded units, the one that runs with those around it
  std::int64_t next = 0;      // and the one that is read
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
      const bool stays = device_of(device_map, name) == main || (!options.offload_buffers && buffers.of(name) > 0);
      if (!stays && !device_of(device_map, name).is_gpu()) brought.back() += sizes.of(name);
      if (stays) need.resident += sizes.of(name);
    }
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
                 "device_map '{}': expected {}, or a map", choice, fmt::join(kChoices, ", "));
}

}  // namespace

RoomyPlan plan_with_room(const ModelDescription& model, const DeviceMapOptions& given,
                         const std::vector<std::string>& preload_module_classes,
                         const std::vector<std::string>& called_modules) {
  const auto units = plan_units(model, {preload_module_classes, called_modules});
  const auto limits = get_max_memory(given.max_memory);
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
      // Without reading ahead, a unit is brought alone, however large it is.
      if (planned == 0 && !prefetch) return {std::move(device_map), false};
      if (planned == 0) break;
      planned = std::max<std::int64_t>(0, planned - excess);
    }
  }
  throw InternalError("a device map without an end");
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
    const auto model = describe(module, Repeats::kEverywhere).description;
    DeviceMapOptions planning{.max_memory = options.max_memory,
                              .no_split_module_classes = options.no_split_module_classes,
                              .dtype = options.dtype,
                              .offload_buffers = options.offload_buffers};
    if (*choice != "sequential") {
      planning.max_memory = get_balanced_memory(model, {.max_memory = options.max_memory,
                                                        .no_split_module_classes = options.no_split_module_classes,
                                                        .dtype = options.dtype,
                                                        .low_zero = *choice == "balanced_low_0"});
    }
    auto plan = plan_with_room(model, planning, options.preload_module_classes, options.called_modules);
    load.device_map = std::move(plan.device_map);
    dispatching.prefetch = plan.prefetch;
  }
  if (load.device_map) check_device_map(describe(module, Repeats::kEverywhere).description, *load.device_map);
  dispatching.offload_index = load_checkpoint_in_model(*module, checkpoint, load);
  if (!load.device_map) return {};
  return {dispatch(module, *load.device_map, dispatching), *load.device_map};
}

}  // namespace accel::offload
