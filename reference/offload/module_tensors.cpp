#include "reference/offload/module_tensors.hpp"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "reference/core/errors.hpp"

namespace accel {
namespace offload {

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

// Like Tensor::set_data, which refuses to switch between the meta device and others.
void show(const at::Tensor& tensor, const at::Tensor& values) {
  const bool is_other_kind = tensor.device() != values.device() || tensor.scalar_type() != values.scalar_type();
  // detach first: only values, not their history, may come into the parameter.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(values.detach().getIntrusivePtr());
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!is_other_kind || meta == nullptr) return;
  const std::lock_guard lock(meta->mutex_);
  // The accumulator caches dtype and device and would reject gradients of the new kind. Autograd makes another one.
  meta->grad_accumulator_.reset();
}

at::Tensor meta_like(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  const c10::InferenceMode normal(false);
  // Strides matter: kernels chosen for a channels-last weight must also be chosen after it is loaded again.
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(at::kMeta).dtype(dtype.value_or(tensor.scalar_type())));
}

void check_needs_no_gradient(const std::string& name, const at::Tensor& tensor) {
  check_state(
      !c10::GradMode::is_enabled() || !tensor.requires_grad(),
      "'{}' is only in memory while its module runs, so no gradient can be computed for it; call the model under "
      "torch::NoGradGuard, or clear the parameter's requires_grad",
      name);
}

c10::Device torch_device(MapDevice device) {
  ensure(!device.is_disk(), "torch_device: \"disk\" is not a torch device");
  if (device.is_cpu()) return at::kCPU;
  // Only CUDA devices count; the build's accelerator may be of another kind.
  const int num_gpus = at::globalContext().hasCUDA() ? at::accelerator::deviceCount() : 0;
  check_config(device.gpu() < num_gpus,
               "device {}: this machine and build have {} GPUs; remove it from max_memory and the device map, or run "
               "on a machine that has it",
               device.gpu(), num_gpus);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.gpu())};
}

}  // namespace offload

namespace {

bool is_of_integers(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

// Linear search; named_parameters already builds a full list, so a map would not help.
at::Tensor tensor_named(const torch::nn::Module& module, const std::string& name) {
  for (const auto& [other, tensor] : offload::tensors_of(module)) {
    if (other == name) return tensor;
  }
  throw ArgumentError(fmt::format(
      "{} does not have a parameter or a buffer named '{}'; expected a name of named_parameters() or named_buffers()",
      module.name(), name));
}

}  // namespace

void set_module_tensor_to_device(torch::nn::Module& module, const std::string& tensor_name, c10::Device device,
                                 const SetTensorOptions& options) {
  const c10::NoGradGuard no_grad;
  const c10::InferenceMode normal(false);
  const auto tensor = tensor_named(module, tensor_name);
  auto values = tensor.detach();
  if (options.value.defined()) {
    check_argument(options.value.sizes() == tensor.sizes(),
                   "'{}' has sizes [{}], but the value has [{}]; expected equal sizes", tensor_name,
                   fmt::join(tensor.sizes(), ", "), fmt::join(options.value.sizes(), ", "));
    values = options.value.detach();
    if (!options.dtype) values = values.to(tensor.scalar_type());
  }
  // As in Python, integers such as position ids keep their dtype when a model is loaded in half precision.
  if (options.dtype && !is_of_integers(values)) values = values.to(*options.dtype);
  check_argument(device.is_meta() || !values.is_meta(), "'{}' is on the meta device; pass a value to move it to {}",
                 tensor_name, device.str());
  offload::show(tensor, device.is_meta() ? offload::meta_like(values) : values.to(device));
}

void retie_parameters(torch::nn::Module& module, const std::vector<std::vector<std::string>>& tied_parameters) {
  for (const auto& names : tied_parameters) {
    std::vector<at::Tensor> group;
    for (const auto& name : names) group.push_back(tensor_named(module, name));
    const auto first =
        std::find_if(group.begin(), group.end(), [](const at::Tensor& tensor) { return !tensor.is_meta(); });
    // A group that is still on the meta device has no values to share yet.
    if (first == group.end()) continue;
    for (const auto& tensor : group) {
      if (!tensor.is_same(*first)) offload::show(tensor, *first);
    }
  }
}

}  // namespace accel
