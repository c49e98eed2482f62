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

/// Tensors of modules, and other values in their place.
///
///     accel::set_module_tensor_to_device(*net, "blocks.0.weight", "cpu", {.value = weight});
///
/// A tensor stays the object that it is: whoever holds the parameter sees the new values, under all names of a shared
/// one. Thread rule: the rank's thread. Source: accelerate/utils/modeling.py.
namespace accel {

struct SetTensorOptions {
  at::Tensor value = {};                     ///< absent: what the tensor holds
  std::optional<at::ScalarType> dtype = {};  ///< of a value, unless it is of integers; absent: that of the tensor
};

/// `device`: "meta" too. Throws ArgumentError if there is no such tensor, a value has other sizes, or the tensor is on
/// the meta device and there is no value.
void set_module_tensor_to_device(torch::nn::Module& module, const std::string& tensor_name, c10::Device device,
                                 const SetTensorOptions& options = {});

/// Makes all tensors of a group see the memory of the first that is not on the meta device. Nothing here unties what is
/// one tensor; this is for modules that were given tensors of their own. Throws ArgumentError for a name that is no
/// tensor of the module.
void retie_parameters(torch::nn::Module& module, const std::vector<std::vector<std::string>>& tied_parameters);

namespace offload {

/// Parameters, then buffers, at each of their places.
NamedTensors tensors_of(const torch::nn::Module& module);
/// Shows `values` in the place of the tensor's own: sizes, dtype, device and memory are theirs, requires_grad and
/// gradients stay.
void show(const at::Tensor& tensor, const at::Tensor& values);
/// A tensor of the meta device like it.
at::Tensor meta_like(const at::Tensor& tensor, std::optional<at::ScalarType> dtype = std::nullopt);
/// Where weights of a GPU or the CPU go. Throws ConfigError if the machine or the build has no such GPU.
c10::Device torch_device(MapDevice device);

}  // namespace offload
}  // namespace accel
