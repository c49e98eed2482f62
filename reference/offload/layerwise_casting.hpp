#pragma once

#include <string>
#include <vector>

#include "reference/offload/dispatch.hpp"

/// Weights that are stored in a small dtype and computed with in a larger one.
///
///     auto model = accel::attach_layerwise_casting_hooks(
///         net, {.storage_dtype = at::kFloat8_e4m3fn, .compute_dtype = at::kBFloat16});
///
/// Casts Linear layers and convolutions, unit by unit as they are called (see reference/offload/dispatch_units.hpp);
/// for inference. Thread rule: the rank's thread. Source: accelerate/big_modeling.py, attach_layerwise_casting_hooks.
namespace accel {

struct LayerwiseCastingOptions {
  at::ScalarType storage_dtype = at::kFloat;
  at::ScalarType compute_dtype = at::kFloat;
  std::vector<std::string> skip_modules_pattern =
      {};  ///< regular expressions, found anywhere in a module's name; with all that is in it
  std::vector<std::string> skip_modules_classes = {};
  std::vector<std::string> called_modules = {};  ///< as in DispatchOptions
};

namespace offload {
std::shared_ptr<StreamedModel> cast_layerwise(const std::shared_ptr<torch::nn::Module>& module,
                                              const LayerwiseCastingOptions& options);
}

/// The handle keeps the casting alive; without it weights stay as they are stored. Throws ArgumentError for a pattern
/// that is none.
template <typename Module>
auto attach_layerwise_casting_hooks(const Module& module, const LayerwiseCastingOptions& options) {
  auto shared = offload::shared(module);
  auto streamed = offload::cast_layerwise(shared, options);
  return DispatchedModel(std::move(shared), std::move(streamed), DeviceMap());
}

/// As long as it lives, an offloaded module's weights are there, and those of another are on the execution device, if
/// there is one. Changes to offloaded weights are lost behind it. Source: accelerate/utils/modeling.py,
/// align_module_device.
class AlignModuleDevice {
 public:
  explicit AlignModuleDevice(torch::nn::Module& module, std::optional<c10::Device> execution_device = std::nullopt);
  ~AlignModuleDevice();
  AlignModuleDevice(const AlignModuleDevice&) = delete;
  AlignModuleDevice& operator=(const AlignModuleDevice&) = delete;

 private:
  offload::BroughtUnit unit_;
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
