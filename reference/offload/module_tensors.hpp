#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/offload/memory_limits.hpp"

namespace torch::nn {
class Module;
}

/// Tensors of modules, and how to replace their values.
///
///     accel::set_module_tensor_to_device(*net, "blocks.0.weight", "cpu", {.value = weight});
///
/// A tensor keeps its identity: everyone who holds the parameter sees the new values, under all names of a shared one.
/// Thread rule: the rank's thread. Source: accelerate/utils/modeling.py.
namespace accel {

struct SetTensorOptions {
  at::Tensor value = {};                     ///< absent: the tensor's current values
  std::optional<at::ScalarType> dtype = {};  ///< dtype of non-integer values; absent: the tensor's
};

/// Moves a tensor to `device`, which may be "meta", and sets its value. Throws ArgumentError if there is no such
/// tensor, if the value has other sizes, or if the tensor is on the meta device and there is no value.
void set_module_tensor_to_device(torch::nn::Module& module, const std::string& tensor_name, c10::Device device,
                                 const SetTensorOptions& options = {});

/// Makes all tensors of a group share the memory of the first one that is not on the meta device. It is for modules
/// whose tied tensors were replaced by separate ones; functions of this header never untie them. Throws ArgumentError
/// for a name that is not a tensor of the module.
void retie_parameters(torch::nn::Module& module, const std::vector<std::vector<std::string>>& tied_parameters);

namespace offload {

/// Parameters, then buffers, under each of their names.
NamedTensors tensors_of(const torch::nn::Module& module);
/// Makes `tensor` show `values`: it takes over their sizes, dtype, device and memory, and keeps requires_grad and
/// gradients.
void show(const at::Tensor& tensor, const at::Tensor& values);
/// A tensor on the meta device with the same sizes and strides.
at::Tensor meta_like(const at::Tensor& tensor, std::optional<at::ScalarType> dtype = std::nullopt);
/// Throws StateError if gradients are enabled and the tensor requires one: autograd would save the loaded values for
/// backward, and keep them in memory after the call.
void check_needs_no_gradient(const std::string& name, const at::Tensor& tensor);
/// The torch device of a GPU or the CPU. Throws ConfigError if the machine or the build has no such GPU.
c10::Device torch_device(MapDevice device);

}  // namespace offload
}  // namespace accel
