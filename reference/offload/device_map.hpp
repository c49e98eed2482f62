#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/offload/memory_limits.hpp"
#include "reference/offload/module_sizes.hpp"

/// Device maps: which part of a model is stored on which device, planned from sizes alone.
///
///     const auto plan = accel::plan_device_map(model, {.max_memory = accel::MaxMemory{{0, "10GB"}, {"cpu", "30GB"}},
///                                                      .no_split_module_classes = {"Block"}});
///     plan.device_map == DeviceMap{{"embedding", 0}, {"blocks.0", 0}, {"blocks.1", "cpu"}, {"head", "disk"}}
///
/// Greedy, in the order of the model: GPUs by number, then main memory, then disk, which has no limit. The first GPU
/// and main memory reserve space for the largest layer that is still to be placed, because offloaded layers are moved
/// there to run. Modules with tied parameters are placed together. Thread rule: pure functions. Source:
/// accelerate/utils/modeling.py, infer_auto_device_map.
namespace accel {

/// Devices by module or tensor name. A name covers everything inside it; "" covers the complete model.
using DeviceMap = std::map<std::string, MapDevice>;

struct DeviceMapOptions {
  std::optional<MaxMemory> max_memory = {};  ///< absent: the free memory
  std::vector<std::string> no_split_module_classes =
      {};  ///< classes whose modules stay on one device, such as blocks with a residual connection
  std::optional<at::ScalarType> dtype = {};
  std::map<std::string, at::ScalarType> special_dtypes = {};
  bool clean_result = true;  ///< replaces the entries of a module's parts by one if all are on one device
  bool offload_buffers = false;
  bool fallback_allocation = false;  ///< if the next module does not fit on an empty device, places a later one there
};

struct DeviceMapPlan {
  DeviceMap device_map = {};
  /// For devices on which nothing fits: the memory that would have been enough.
  std::map<MapDevice, std::int64_t> minimum_bytes = {};
  /// Size of offloaded modules' buffers, which stay on the GPU that runs them; 0 if buffers are offloaded too.
  std::int64_t offloaded_buffer_bytes = 0;
  bool offloaded_buffers_fit = true;  ///< whether some GPU has room for these buffers
};

DeviceMapPlan plan_device_map(const ModelDescription& model, const DeviceMapOptions& options = {});
/// The plan's device map. Warns if the buffers of offloaded modules fit on no GPU.
DeviceMap infer_auto_device_map(const ModelDescription& model, const DeviceMapOptions& options = {});

struct BalancedMemoryOptions {
  std::optional<MaxMemory> max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  std::optional<at::ScalarType> dtype = {};
  std::map<std::string, at::ScalarType> special_dtypes = {};
  bool low_zero = false;  ///< uses the first GPU as little as possible
};

/// Limits that spread a model evenly over GPUs. For a single GPU: nine tenths of its free memory, unless `max_memory`
/// is set.
MaxMemory get_balanced_memory(const ModelDescription& model, const BalancedMemoryOptions& options = {});

/// Replaces the entries of a module's parts by one entry if all parts are on one device.
DeviceMap clean_device_map(DeviceMap device_map);

/// Throws ArgumentError, which lists all tensors that no entry covers and all entries that name no module or tensor of
/// the model.
void check_device_map(const ModelDescription& model, const DeviceMap& device_map);

/// The device of a module or tensor: that of the longest entry that covers it. Throws ArgumentError if there is none.
MapDevice device_of(const DeviceMap& device_map, const std::string& name);

}  // namespace accel
