#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/modules/hooks.hpp"
#include "reference/offload/dispatch.hpp"

/// Hooks that move a module's weights and inputs to the device where it runs.
///
///     auto [text_encoder, text_hook] = accel::cpu_offload_with_hook(net_1, {.execution_device = device});
///     auto [decoder, hook] =
///         accel::cpu_offload_with_hook(net_2, {.execution_device = device, .prev_module_hook = text_hook});
///     auto hidden = text_encoder(tokens);
///     for (int step = 0; step < 50; ++step) hidden = decoder(hidden);  // the first step offloads net_1
///     hook.offload();
///
/// These are hooks of reference/modules/hooks.hpp, which documents which calls run them. Prefer `dispatch_model` or
/// `cpu_offload` for one model that does not fit on its device. Thread rule: the rank's thread. Source:
/// accelerate/hooks.py.
namespace accel {

struct AlignDevicesOptions {
  std::optional<c10::Device> execution_device = {};  ///< absent: neither weights nor inputs are moved
  bool offload = false;                              ///< weights are on `execution_device` only during the forward
  bool io_same_device = false;                       ///< moves the output to the device of the first input tensor
  std::map<std::string, at::Tensor> weights_map =
      {};  ///< offloaded values by name; empty: the current ones, on the CPU
  bool offload_buffers = false;
  bool place_submodules = false;  ///< includes the tensors of modules inside
};

/// Moves the weights of one module, and its inputs, to a device for the forward. Removal puts offloaded weights back.
/// With `offload` a hook serves one module: attaching it to another throws StateError.
class AlignDevicesHook : public ModelHook {
 public:
  /// Throws ArgumentError for `offload` without a device.
  explicit AlignDevicesHook(AlignDevicesOptions options);
  /// Throws ArgumentError that lists all tensors that `weights_map` lacks.
  void init_hook(torch::nn::Module& module) override;
  /// Throws StateError if autograd would have to keep an offloaded weight.
  void pre_forward(torch::nn::Module& module, CallValues& arguments) override;
  void post_forward(torch::nn::Module& module, CallValues& output) override;
  void detach_hook(torch::nn::Module& module) override;

 private:
  [[nodiscard]] NamedTensors tensors_of(const torch::nn::Module& module, bool with_buffers) const;
  [[nodiscard]] NamedTensors offloaded(const torch::nn::Module& module) const;

  AlignDevicesOptions options_;
  const torch::nn::Module* module_ = nullptr;  // whose weights are offloaded; only compared
  std::map<std::string, at::Tensor> weights_;  // the values of offloaded tensors
  std::map<std::string, c10::Device> original_devices_;
  std::vector<at::Tensor> loaded_;  // by the current call
  std::optional<c10::Device> input_device_;
};

class CpuOffload;

/// Offloads or releases a model of `cpu_offload_with_hook`. A value; copies stand for the same model.
class UserCpuOffloadHook {
 public:
  UserCpuOffloadHook(std::shared_ptr<torch::nn::Module> model, std::shared_ptr<CpuOffload> hook)
      : model_(std::move(model)), hook_(std::move(hook)) {}
  /// Moves the model to the CPU.
  void offload() const;
  /// Removes the model's hooks. The model stays where it is.
  void remove() const;
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& model() const { return model_; }

 private:
  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<CpuOffload> hook_;
};

struct CpuOffloadOptions {
  std::optional<c10::Device> execution_device =
      {};  ///< absent: the rank's device; without a rank the first GPU or the CPU
  std::optional<UserCpuOffloadHook> prev_module_hook = {};  ///< the model to offload before this one runs
};

/// Keeps a model on the CPU until it is called. It then stays on the device until `init_hook`.
class CpuOffload : public ModelHook {
 public:
  explicit CpuOffload(const CpuOffloadOptions& options);
  /// Moves the model to the CPU. Throws StateError if sharding or offloading moves parts of the model.
  void init_hook(torch::nn::Module& module) override;
  void pre_forward(torch::nn::Module& module, CallValues& arguments) override;

 private:
  c10::Device execution_device_;
  std::weak_ptr<torch::nn::Module> previous_;  // weak: in a loop of models each would keep the others
};

/// Moves the model to the CPU, and to the device when it is called; it stays there until the returned hook's `offload`
/// or the call of a model whose `prev_module_hook` it is. Returns the handle to call the model by, and the hook.
template <typename Module>
auto cpu_offload_with_hook(const Module& module, const CpuOffloadOptions& options = {}) {
  auto shared = offload::shared(module);
  auto hook = std::make_shared<CpuOffload>(options);
  add_hook_to_module(*shared, hook, {.append = true});
  UserCpuOffloadHook user_hook(shared, std::move(hook));
  return std::pair(DispatchedModel(std::move(shared), nullptr, DeviceMap()), std::move(user_hook));
}

}  // namespace accel
