#include "reference/offload/device_hooks.hpp"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/offload/module_tensors.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {
namespace {

at::Tensor sent_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

c10::Device default_execution_device() {
  if (const auto* rank = find_current_rank()) return rank->device;
  return at::globalContext().hasCUDA() ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
}

bool is_on(const torch::nn::Module& module, c10::Device device) {
  const auto parameters = module.parameters();
  return !parameters.empty() && parameters.front().device() == device;
}

// Module::to would replace the values that sharding or streaming shows and hides.
void check_is_not_moved_otherwise(const torch::nn::Module& module) {
  auto parts = module.modules(/*include_self=*/false);
  const bool has_hooks =
      detail::hooks_of(module) != nullptr ||
      std::any_of(parts.begin(), parts.end(), [](const auto& part) { return detail::hooks_of(*part) != nullptr; });
  check_state(!has_hooks,
              "cpu_offload_with_hook: parts of {} are moved by sharding or offloading already; use one of the two",
              module.name());
}

}  // namespace

AlignDevicesHook::AlignDevicesHook(AlignDevicesOptions options) : options_(std::move(options)) {
  check_argument(!options_.offload || options_.execution_device,
                 "AlignDevicesHook: offload requires execution_device, to which the weights are moved for the forward");
}

NamedTensors AlignDevicesHook::tensors_of(const torch::nn::Module& module, bool with_buffers) const {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters(options_.place_submodules))
    tensors.emplace_back(item.key(), item.value());
  if (!with_buffers) return tensors;
  for (const auto& item : module.named_buffers(options_.place_submodules))
    tensors.emplace_back(item.key(), item.value());
  return tensors;
}

NamedTensors AlignDevicesHook::offloaded(const torch::nn::Module& module) const {
  return tensors_of(module, options_.offload_buffers);
}

void AlignDevicesHook::init_hook(torch::nn::Module& module) {
  const auto device = options_.execution_device;
  if (!device) return;
  const c10::NoGradGuard no_grad;
  std::set<std::string> placed;
  if (options_.offload) {
    check_state(module_ == nullptr || module_ == &module,
                "AlignDevicesHook: it holds the offloaded weights of another module; create one hook per module");
    module_ = &module;
    original_devices_.clear();
    for (const auto& [name, tensor] : tensors_of(module, /*with_buffers=*/true))
      original_devices_.emplace(name, tensor.device());
    weights_ = options_.weights_map;
    std::vector<std::string> missing;
    for (const auto& [name, tensor] : offloaded(module)) {
      if (options_.weights_map.empty() && !tensor.is_meta()) weights_.emplace(name, tensor.detach().to(at::kCPU));
      if (!weights_.contains(name)) missing.push_back(name);
    }
    check_argument(missing.empty(), "AlignDevicesHook: weights_map lacks '{}'; it must contain all offloaded tensors",
                   listed(missing, "', '"));
    for (const auto& [name, tensor] : offloaded(module)) {
      offload::show(tensor, offload::meta_like(tensor));
      placed.insert(name);
    }
  }
  for (const auto& [name, tensor] : tensors_of(module, /*with_buffers=*/true)) {
    if (!placed.contains(name)) set_module_tensor_to_device(module, name, *device);
  }
}

void AlignDevicesHook::pre_forward(torch::nn::Module& module, CallValues& arguments) {
  if (options_.io_same_device) {
    input_device_.reset();
    for (const auto& tensor : arguments.tensors()) {
      if (tensor.defined() && !input_device_) input_device_ = tensor.device();
    }
  }
  if (!options_.execution_device) return;
  if (options_.offload) {
    const auto tensors = offloaded(module);
    for (const auto& [name, tensor] : tensors) offload::check_needs_no_gradient(name, tensor);
    const c10::NoGradGuard no_grad;
    const c10::InferenceMode normal(false);
    for (const auto& [name, tensor] : tensors) {
      // The module around may have loaded a shared tensor, and then releases it.
      if (!tensor.is_meta()) continue;
      offload::show(tensor, weights_.at(name).to(*options_.execution_device));
      loaded_.push_back(tensor);
    }
  }
  arguments.map_tensors([&](const at::Tensor& tensor) { return sent_to(tensor, *options_.execution_device); });
}

void AlignDevicesHook::post_forward(torch::nn::Module& /*module*/, CallValues& output) {
  for (const auto& tensor : std::exchange(loaded_, {})) offload::show(tensor, offload::meta_like(tensor));
  if (input_device_) output.map_tensors([&](const at::Tensor& tensor) { return sent_to(tensor, *input_device_); });
}

void AlignDevicesHook::detach_hook(torch::nn::Module& module) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors_of(module, /*with_buffers=*/true)) {
    const auto original = original_devices_.find(name);
    if (original == original_devices_.end() || original->second.is_meta()) continue;
    const auto stored = weights_.find(name);
    offload::show(tensor, (stored == weights_.end() ? tensor.detach() : stored->second).to(original->second));
  }
  loaded_.clear();
  module_ = nullptr;
}

void UserCpuOffloadHook::offload() const { hook_->init_hook(*model_); }

void UserCpuOffloadHook::remove() const { remove_hook_from_module(*model_); }

CpuOffload::CpuOffload(const CpuOffloadOptions& options)
    : execution_device_(options.execution_device.value_or(default_execution_device())) {
  if (options.prev_module_hook) previous_ = options.prev_module_hook->model();
}

void CpuOffload::init_hook(torch::nn::Module& module) {
  check_is_not_moved_otherwise(module);
  module.to(at::kCPU);
}

// Accelerate moves inputs only in the call that moves the model, so that a later call with inputs on the CPU fails.
void CpuOffload::pre_forward(torch::nn::Module& module, CallValues& arguments) {
  if (const auto previous = previous_.lock(); previous && !is_on(*previous, at::kCPU)) previous->to(at::kCPU);
  if (!is_on(module, execution_device_)) module.to(execution_device_);
  arguments.map_tensors([&](const at::Tensor& tensor) { return sent_to(tensor, execution_device_); });
}

}  // namespace accel
