#pragma once

#include <string>
#include <vector>

#include "reference/offload/dispatch.hpp"

/// Weights that are stored in a small dtype and cast to a larger one for computing.
///
///     auto model = accel::attach_layerwise_casting_hooks(
///         net, {.storage_dtype = at::kFloat8_e4m3fn, .compute_dtype = at::kBFloat16});
///
/// Casts Linear layers and convolutions, unit by unit when they are called (see reference/offload/dispatch_units.hpp).
/// For inference only. Thread rule: the rank's thread. Source: accelerate/big_modeling.py,
/// attach_layerwise_casting_hooks.
namespace accel {

struct LayerwiseCastingOptions {
  at::ScalarType storage_dtype = at::kFloat;
  at::ScalarType compute_dtype = at::kFloat;
  std::vector<std::string> skip_modules_pattern =
      {};  ///< regular expressions searched in module names; a match also excludes all submodules
  std::vector<std::string> skip_modules_classes = {};
  std::vector<std::string> called_modules = {};  ///< as in DispatchOptions
};

namespace offload {
std::shared_ptr<StreamedModel> cast_layerwise(const std::shared_ptr<torch::nn::Module>& module,
                                              const LayerwiseCastingOptions& options);
}

/// The handle keeps the hooks alive; without it, weights remain in the storage dtype. Throws ArgumentError for an
/// invalid regular expression.
template <typename Module>
auto attach_layerwise_casting_hooks(const Module& module, const LayerwiseCastingOptions& options) {
  auto shared = offload::shared(module);
  auto streamed = offload::cast_layerwise(shared, options);
  return DispatchedModel(std::move(shared), std::move(streamed), DeviceMap());
}

/// While it lives, an offloaded module's weights are loaded, and those of another module are on the execution device,
/// if one is given. Changes to offloaded weights are lost afterwards. Source: accelerate/utils/modeling.py,
/// align_module_device.
class AlignModuleDevice {
 public:
  explicit AlignModuleDevice(torch::nn::Module& module, std::optional<c10::Device> execution_device = std::nullopt);
  ~AlignModuleDevice();
  AlignModuleDevice(const AlignModuleDevice&) = delete;
  AlignModuleDevice& operator=(const AlignModuleDevice&) = delete;

 private:
  offload::LoadedUnit unit_;
  struct Moved {
    at::Tensor tensor = {}, original = {};
  };
  std::vector<Moved> moved_;
};

/// `auto aligned = accel::align_module_device(*block);`
[[nodiscard]] inline AlignModuleDevice align_module_device(torch::nn::Module& module,
                                                           std::optional<c10::Device> execution_device = std::nullopt) {
  return AlignModuleDevice(module, execution_device);
}

}  // namespace accel
