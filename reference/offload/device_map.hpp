#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/offload/memory_limits.hpp"
#include "reference/offload/module_sizes.hpp"

/// Which part of a model stays where, planned from sizes alone.
///
///     const auto plan = accel::plan_device_map(model, {.max_memory = accel::MaxMemory{{0, "10GB"}, {"cpu", "30GB"}},
///                                                      .no_split_module_classes = {"Block"}});
///     plan.device_map == DeviceMap{{"embedding", 0}, {"blocks.0", 0}, {"blocks.1", "cpu"}, {"head", "disk"}}
///
/// Greedy, in the order of the model: GPUs by number, then main memory, then disk, which has no limit. The first GPU
/// and main memory keep room for the largest layer that is still to be placed: what does not fit is brought there to
/// run. Tied parameters are placed together, with their modules. Thread rule: pure functions. Source:
/// accelerate/utils/modeling.py, infer_auto_device_map.
namespace accel {

/// Names of modules and tensors; a name covers all that is within it, and "" the whole model.
using DeviceMap = std::map<std::string, MapDevice>;

struct DeviceMapOptions {
  std::optional<MaxMemory> max_memory = {};  ///< absent: what is free
  std::vector<std::string> no_split_module_classes =
      {};  ///< whose modules stay in one place, like blocks with a residual connection
  std::optional<at::ScalarType> dtype = {};
  std::map<std::string, at::ScalarType> special_dtypes = {};
  bool clean_result = true;  ///< a module for its parts, where all are in one place
  bool offload_buffers = false;
  bool fallback_allocation = false;  ///< of a device that is too small for its turn, the first later module that fits
};

struct DeviceMapPlan {
  DeviceMap device_map = {};
  /// Of devices on which nothing fits: what would have been enough.
  std::map<MapDevice, std::int64_t> minimum_bytes = {};
  /// Buffers of what is not on GPUs, which stay on the GPU that runs it; 0 where they are offloaded too.
  std::int64_t offloaded_buffer_bytes = 0;
  bool offloaded_buffers_fit = true;  ///< on some GPU
};

DeviceMapPlan plan_device_map(const ModelDescription& model, const DeviceMapOptions& options = {});
inline DeviceMap infer_auto_device_map(const ModelDescription& model, const DeviceMapOptions& options = {}) {
  return plan_device_map(model, options).device_map;
}

struct BalancedMemoryOptions {
  std::optional<MaxMemory> max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  std::optional<at::ScalarType> dtype = {};
  std::map<std::string, at::ScalarType> special_dtypes = {};
  bool low_zero = false;  ///< as little as possible on the first GPU
};

/// Limits that spread a model evenly over GPUs; of a single GPU, nine tenths of what is free unless `max_memory` says
/// more.
MaxMemory get_balanced_memory(const ModelDescription& model, const BalancedMemoryOptions& options = {});

/// One entry for modules that go to one place as a whole.
DeviceMap clean_device_map(DeviceMap device_map);

/// Throws ArgumentError with all tensors that no entry covers, and all entries that are no module or tensor of the
/// model.
void check_device_map(const ModelDescription& model, const DeviceMap& device_map);

/// The place of a module or tensor: of the longest entry that covers it. Throws ArgumentError if there is none.
MapDevice device_of(const DeviceMap& device_map, const std::string& name);

}  // namespace accel
