#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/modules/call.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/device_map.hpp"
#include "reference/offload/offload_files.hpp"
#include "reference/offload/streamed_model.hpp"
#include "reference/tree/tree.hpp"

/// Inference with models that do not fit in memory: parts are stored on GPUs, in main memory and on disk, and moved to
/// where they run when they are called.
///
///     auto net = accel::init_empty_weights([] { return Net(); });
///     auto model = accel::load_checkpoint_and_dispatch(
///         net, "checkpoint", {.device_map = "auto", .max_memory = accel::MaxMemory{{"cpu", "1GB"}}});
///     torch::NoGradGuard no_grad;
///     auto output = model(input);
///
/// A Sequential needs no change. Other models call the elements of their ModuleLists with `accel::call`; these are then
/// moved one by one, and everything else together with the model itself (see reference/offload/dispatch_units.hpp). The
/// model runs on the first GPU of its device map, or on the CPU. While one unit runs, a worker thread reads the next
/// one. Offloaded parameters receive no gradients. Thread rule: the rank's thread. Source: accelerate/big_modeling.py.
namespace accel {

struct DispatchOptions {
  std::optional<MapDevice> main_device =
      {};  ///< where offloaded parts run; absent: the first GPU of the device map, else the CPU
  std::map<std::string, at::Tensor> state_dict =
      {};  ///< values of parts that stay in main memory and run on a GPU; absent: their current values
  std::string offload_dir =
      {};  ///< folder for parts on disk; their values are written there, unless they are on the meta device
  OffloadIndex offload_index = {};  ///< files that already contain weights of parts on disk
  bool offload_buffers = false;
  std::vector<std::string> preload_module_classes = {};  ///< classes whose modules are loaded with all submodules
  std::vector<std::string> called_modules = {};          ///< names of further modules called with `accel::call`
  bool prefetch = true;  ///< reads the next unit while one runs; false: at most one unit is in memory
};

/// "auto", "balanced", "balanced_low_0" or "sequential"; or a map; or nothing, which loads the model without
/// dispatching it.
using DeviceMapChoice = std::variant<std::monostate, std::string, DeviceMap>;

struct LoadAndDispatchOptions {
  DeviceMapChoice device_map = {};
  std::optional<MaxMemory> max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  std::string offload_folder = {};  ///< optional: weights on disk are read from the checkpoint's own files
  bool offload_buffers = false;
  std::optional<at::ScalarType> dtype = {};
  std::vector<std::string> preload_module_classes = {};
  std::vector<std::string> called_modules = {};
  bool strict = false;
};

namespace offload {

void check_output(const std::vector<at::Tensor>& tensors, const StreamedModel& streamed);
/// Throws StateError if `error` comes from an operator that met a tensor without values.
void explain(const std::exception& error, const StreamedModel& streamed);

/// Returns null if no tensor has to be moved during calls.
std::shared_ptr<StreamedModel> dispatch(const std::shared_ptr<torch::nn::Module>& module, const DeviceMap& device_map,
                                        const DispatchOptions& options);

struct Dispatched {
  std::shared_ptr<StreamedModel> streamed = {};
  DeviceMap device_map = {};
};
Dispatched load_and_dispatch(const std::shared_ptr<torch::nn::Module>& module, const std::string& checkpoint,
                             const LoadAndDispatchOptions& options);

/// A device map, and whether it leaves room to read the next unit while one runs. `max_memory` bounds the memory of the
/// main device at any time, while Accelerate's plan only reserves room for one layer.
struct PrefetchPlan {
  DeviceMap device_map = {};
  bool prefetch = false;
};
PrefetchPlan plan_with_prefetch(const ModelDescription& model, const DeviceMapOptions& options,
                                const std::vector<std::string>& preload_module_classes,
                                const std::vector<std::string>& called_modules);

template <typename Module>
std::shared_ptr<Module> shared(std::shared_ptr<Module> module) {
  return module;
}
template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
auto shared(const Holder& holder) {
  return holder.ptr();
}

}  // namespace offload

/// A handle for a dispatched model. The model stays dispatched as long as a copy of the handle lives.
template <typename Module>
class DispatchedModel {
 public:
  DispatchedModel(std::shared_ptr<Module> module, std::shared_ptr<offload::StreamedModel> streamed,
                  DeviceMap device_map)
      : module_(std::move(module)), streamed_(std::move(streamed)), device_map_(std::move(device_map)) {}

  /// Throws StateError if the output has no values because a part was not called with `accel::call`.
  template <typename... Args>
  auto operator()(Args&&... args) {
    if (!streamed_) return call(*module_, std::forward<Args>(args)...);
    streamed_->begin_pass();
    try {
      auto output = call(*module_, std::forward<Args>(args)...);
      if constexpr (Tree<decltype(output)>) offload::check_output(tensors_of(output), *streamed_);
      return output;
    } catch (const c10::Error& error) {
      offload::explain(error, *streamed_);
      throw;
    }
  }

  [[nodiscard]] const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  /// Empty if nothing was dispatched.
  [[nodiscard]] const DeviceMap& hf_device_map() const { return device_map_; }
  /// Zero if nothing is offloaded.
  [[nodiscard]] offload::StreamStatistics statistics() const {
    return streamed_ ? streamed_->statistics() : offload::StreamStatistics();
  }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<offload::StreamedModel> streamed_;
  DeviceMap device_map_;
};

/// The plans of device_map.hpp for a module: a ModuleHolder or a shared_ptr.
template <typename Module>
  requires(!std::same_as<Module, ModelDescription>)
DeviceMap infer_auto_device_map(const Module& module, const DeviceMapOptions& options = {}) {
  return infer_auto_device_map(describe(offload::shared(module)).description, options);
}
template <typename Module>
  requires(!std::same_as<Module, ModelDescription>)
MaxMemory get_balanced_memory(const Module& module, const BalancedMemoryOptions& options = {}) {
  return get_balanced_memory(describe(offload::shared(module)).description, options);
}
template <typename Module>
  requires(!std::same_as<Module, ModelDescription>)
MaximumSizes calculate_maximum_sizes(const Module& module,
                                     const std::vector<std::string>& no_split_module_classes = {}) {
  return calculate_maximum_sizes(describe(offload::shared(module)).description, no_split_module_classes);
}

/// `module`: a ModuleHolder or a shared_ptr of a module. Throws ArgumentError, which lists all mismatches between the
/// map and the model, or ConfigError for a GPU that does not exist.
template <typename Module>
auto dispatch_model(const Module& module, const DeviceMap& device_map, const DispatchOptions& options = {}) {
  auto shared = offload::shared(module);
  auto streamed = offload::dispatch(shared, device_map, options);
  return DispatchedModel(std::move(shared), std::move(streamed), device_map);
}

/// Keeps all weights in main memory and copies them to the device to run.
template <typename Module>
auto cpu_offload(const Module& module, MapDevice execution_device, DispatchOptions options = {}) {
  options.main_device = execution_device;
  return dispatch_model(module, {{"", "cpu"}}, options);
}

/// Keeps all weights in a folder and reads them to run.
template <typename Module>
auto disk_offload(const Module& module, const std::string& offload_dir, DispatchOptions options = {}) {
  options.offload_dir = offload_dir;
  return dispatch_model(module, {{"", "disk"}}, options);
}

/// Loads a checkpoint (see `load_checkpoint_in_model`) to the devices of the map. Weights that the map assigns to disk
/// stay in the checkpoint's files.
template <typename Module>
auto load_checkpoint_and_dispatch(const Module& module, const std::string& checkpoint,
                                  const LoadAndDispatchOptions& options = {}) {
  auto shared = offload::shared(module);
  auto dispatched = offload::load_and_dispatch(shared, checkpoint, options);
  return DispatchedModel(std::move(shared), std::move(dispatched.streamed), std::move(dispatched.device_map));
}

}  // namespace accel
