#include "reference/optim/optimizers/clip.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "reference/core/named_tensors.hpp"

namespace accel::optim {
namespace {

// Each parameter once, since scaling a gradient twice would be wrong.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : unique_tensors(parameters)) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

// The norm of the norms, as Python computes it: the norm of all elements at once would round differently.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type, std::optional<at::ScalarType> dtype) {
  return gradients.empty()
             ? at::zeros({})
             : at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, norm_type, dtype)), norm_type);
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type, std::optional<at::ScalarType> dtype) {
  const c10::NoGradGuard no_grad;
  return norm_of(gradients_of(parameters), norm_type, dtype);
}

at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                          std::optional<at::ScalarType> dtype) {
  const c10::NoGradGuard no_grad;
  const auto total_norm = norm_of(gradients_of(parameters), norm_type, dtype);
  scale_to_norm(parameters, total_norm, max_norm);
  return total_norm;
}

void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& total_norm, double max_norm) {
  const c10::NoGradGuard no_grad;
  auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  // Python's `max_norm / tensor` is a reciprocal and a product, which round twice. The clamp replaces a branch on the
  // norm, which would have to wait for the device.
  auto scale = (total_norm + 1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  // A scalar tensor on the CPU can multiply tensors of any device, including gradients that are offloaded to the CPU.
  if (std::any_of(gradients.begin(), gradients.end(), [](const auto& gradient) { return gradient.is_cpu(); }))
    scale = scale.cpu();
  at::_foreach_mul_(gradients, scale);
}

void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  const c10::NoGradGuard no_grad;
  auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

}  // namespace accel::optim
