#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/core/tree.hpp"
#include "reference/modules/call.hpp"
#include "reference/offload/device_map.hpp"
#include "reference/offload/offload_files.hpp"
#include "reference/offload/streamed_model.hpp"

/// Models that do not fit: parts on GPUs, in main memory and on disk, brought where they run when they are called.
///
///     auto net = accel::init_empty_weights([] { return Net(); });
///     auto model = accel::load_checkpoint_and_dispatch(
///         net, "checkpoint", {.device_map = "auto", .max_memory = accel::MaxMemory{{"cpu", "1GB"}}});
///     torch::NoGradGuard no_grad;
///     auto output = model(input);
///
/// A Sequential needs nothing for it. Another model calls the elements of its ModuleLists by `accel::call`, and those
/// are brought one by one; what else it has comes with the model itself (see reference/offload/dispatch_units.hpp). The
/// model runs on the first GPU of its device map, or on the CPU. While a unit runs, the next one is read by a worker
/// thread. This is for inference: what is offloaded gets no gradients. Thread rule: the rank's thread. Source:
/// accelerate/big_modeling.py.
namespace accel {

struct DispatchOptions {
  std::optional<MapDevice> main_device =
      {};  ///< where offloaded parts run; absent: the first GPU of the device map, else the CPU
  std::map<std::string, at::Tensor> state_dict =
      {};  ///< of parts that stay in main memory and run on a GPU; absent: what they hold
  std::string offload_dir =
      {};  ///< for parts on disk; what they hold is written there, unless they are on the meta device
  OffloadIndex offload_index = {};  ///< where weights of parts on disk lie already
  bool offload_buffers = false;
  std::vector<std::string> preload_module_classes = {};  ///< whose modules are brought with all that is in them
  std::vector<std::string> called_modules = {};  ///< further modules that the model calls by `accel::call`, by name
  bool prefetch = true;  ///< the next unit is read while one runs; without, memory holds one less
};

/// "auto", "balanced", "balanced_low_0" or "sequential"; or a map; or nothing, and the model is loaded where it is.
using DeviceMapChoice = std::variant<std::monostate, std::string, DeviceMap>;

struct LoadAndDispatchOptions {
  DeviceMapChoice device_map = {};
  std::optional<MaxMemory> max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  std::string offload_folder = {};  ///< not needed: weights on disk are read where the checkpoint has them
  bool offload_buffers = false;
  std::optional<at::ScalarType> dtype = {};
  std::vector<std::string> preload_module_classes = {};
  std::vector<std::string> called_modules = {};
  bool strict = false;
};

namespace offload {

void check_output(const std::vector<at::Tensor>& tensors, const StreamedModel& streamed);
/// Throws StateError where an operator met a tensor without values.
void explain(const std::exception& error, const StreamedModel& streamed);

/// Null where nothing has to be brought.
std::shared_ptr<StreamedModel> dispatch(const std::shared_ptr<torch::nn::Module>& module, const DeviceMap& device_map,
                                        const DispatchOptions& options);

struct Dispatched {
  std::shared_ptr<StreamedModel> streamed = {};
  DeviceMap device_map = {};
};
Dispatched load_and_dispatch(const std::shared_ptr<torch::nn::Module>& module, const std::string& checkpoint,
                             const LoadAndDispatchOptions& options);

/// Of a device map that is planned: whether there is room for the unit that runs next to be read while one runs, in
/// which case the plan leaves that room. `max_memory` bounds what is in memory of the main device at any time, and
/// Accelerate's plan keeps room for one layer.
struct RoomyPlan {
  DeviceMap device_map = {};
  bool prefetch = false;
};
RoomyPlan plan_with_room(const ModelDescription& model, const DeviceMapOptions& options,
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

/// A handle on a model whose parts are brought when they are called. As long as a copy lives, so do they.
template <typename Module>
class DispatchedModel {
 public:
  DispatchedModel(std::shared_ptr<Module> module, std::shared_ptr<offload::StreamedModel> streamed,
                  DeviceMap device_map)
      : module_(std::move(module)), streamed_(std::move(streamed)), device_map_(std::move(device_map)) {}

  /// Throws StateError if the output has no values as a part was not called by `accel::call`.
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
  /// Zero where nothing is offloaded.
  [[nodiscard]] offload::StreamStatistics statistics() const {
    return streamed_ ? streamed_->statistics() : offload::StreamStatistics();
  }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<offload::StreamedModel> streamed_;
  DeviceMap device_map_;
};

/// `module`: a ModuleHolder or a shared_ptr of a module. Throws ArgumentError with all that the map does not fit the
/// model in, ConfigError for a GPU that is not there.
template <typename Module>
auto dispatch_model(const Module& module, const DeviceMap& device_map, const DispatchOptions& options = {}) {
  auto shared = offload::shared(module);
  auto streamed = offload::dispatch(shared, device_map, options);
  return DispatchedModel(std::move(shared), std::move(streamed), device_map);
}

/// All weights stay in main memory and are copied to the device to run.
template <typename Module>
auto cpu_offload(const Module& module, MapDevice execution_device, DispatchOptions options = {}) {
  options.main_device = execution_device;
  return dispatch_model(module, {{"", "cpu"}}, options);
}

/// All weights lie in a folder and are read to run.
template <typename Module>
auto disk_offload(const Module& module, const std::string& offload_dir, DispatchOptions options = {}) {
  options.offload_dir = offload_dir;
  return dispatch_model(module, {{"", "disk"}}, options);
}

/// Weights of a checkpoint (see `load_checkpoint_in_model`) go where the map says, and those on disk stay in the
/// checkpoint's files.
template <typename Module>
auto load_checkpoint_and_dispatch(const Module& module, const std::string& checkpoint,
                                  const LoadAndDispatchOptions& options = {}) {
  auto shared = offload::shared(module);
  auto dispatched = offload::load_and_dispatch(shared, checkpoint, options);
  return DispatchedModel(std::move(shared), std::move(dispatched.streamed), std::move(dispatched.device_map));
}

}  // namespace accel
