#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>

namespace torch::nn {
class Module;
}

/// Construction of modules without memory for their parameters, however large they are.
///
///     auto net = accel::init_empty_weights([&] { return Net(config); });
///     auto model = accel::load_checkpoint_and_dispatch(net, "checkpoint", {.device_map = "auto"});
///
/// While `build` runs, tensors without an explicit device are created on the given device. On the meta device they have
/// sizes but no memory, and initialization draws no random numbers for them. Afterwards buffers are created on their
/// actual device by repeating the operations that computed them, unless they are included (absent: the environment's
/// ACCELERATE_INIT_INCLUDE_BUFFERS, else no). Modules that read values during construction, such as orthogonal
/// initialization, are unsupported, and so is `at::tensor`; use `torch::tensor`. Thread rule: only the calling thread
/// is affected. Source: accelerate/big_modeling.py.
namespace accel {

struct InitOptions {
  std::optional<bool> include_buffers = {};
};

namespace offload {

/// While it lives, this thread's new tensors are created on a device.
class DefaultDeviceScope {
 public:
  explicit DefaultDeviceScope(c10::Device device);
  ~DefaultDeviceScope();
  DefaultDeviceScope(const DefaultDeviceScope&) = delete;
  DefaultDeviceScope& operator=(const DefaultDeviceScope&) = delete;
  /// Moves the module's parameters that are elsewhere to the device, and its buffers too if they are included;
  /// otherwise gives the buffers actual values.
  void finish(torch::nn::Module& module, InitOptions options);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace offload

/// Calls `build`, which returns a ModuleHolder or a shared_ptr of a module, with new tensors on `device`.
template <typename Build>
auto init_on_device(c10::Device device, Build&& build, InitOptions options = {}) {
  offload::DefaultDeviceScope scope(device);
  auto module = std::forward<Build>(build)();
  scope.finish(*module, options);
  return module;
}

template <typename Build>
auto init_empty_weights(Build&& build, InitOptions options = {}) {
  return init_on_device(c10::Device(c10::kMeta), std::forward<Build>(build), options);
}

}  // namespace accel
