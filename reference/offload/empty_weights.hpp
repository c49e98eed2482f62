#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>

namespace torch::nn {
class Module;
}

/// Modules that are built without memory for their parameters, however large they are.
///
///     auto net = accel::init_empty_weights([&] { return Net(config); });
///     auto model = accel::load_checkpoint_and_dispatch(net, "checkpoint", {.device_map = "auto"});
///
/// While `build` runs, tensors that do not say where they go are made on the device (the meta device has sizes and no
/// memory), and initialisation draws nothing for them. Buffers are then made where they belong after all, by the
/// operations that made them, unless they are included (absent: the environment's ACCELERATE_INIT_INCLUDE_BUFFERS, else
/// no). What reads a value while it builds, as orthogonal initialisation does, cannot be built so; nor does
/// `at::tensor` work there: use `torch::tensor`. Thread rule: the calling thread alone is concerned. Source:
/// accelerate/big_modeling.py.
namespace accel {

struct InitOptions {
  std::optional<bool> include_buffers = {};
};

namespace offload {

/// As long as it lives, this thread's new tensors go to a device.
class NewTensorsOn {
 public:
  explicit NewTensorsOn(c10::Device device);
  ~NewTensorsOn();
  NewTensorsOn(const NewTensorsOn&) = delete;
  NewTensorsOn& operator=(const NewTensorsOn&) = delete;
  /// Of the module: parameters that are elsewhere go to the device; buffers too, or are made real.
  void finish(torch::nn::Module& module, InitOptions options);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace offload

/// `build` returns a ModuleHolder or a shared_ptr of a module.
template <typename Build>
auto init_on_device(c10::Device device, Build&& build, InitOptions options = {}) {
  offload::NewTensorsOn scope(device);
  auto module = std::forward<Build>(build)();
  scope.finish(*module, options);
  return module;
}

template <typename Build>
auto init_empty_weights(Build&& build, InitOptions options = {}) {
  return init_on_device(c10::Device(c10::kMeta), std::forward<Build>(build), options);
}

}  // namespace accel
