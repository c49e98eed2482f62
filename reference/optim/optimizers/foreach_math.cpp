#include "reference/optim/optimizers/foreach_math.hpp"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include <cmath>

// Note [Order of foreach operations]
// The optimizers in this folder apply the same at::_foreach_ operations to the same operands in the same order as
// Python's multi-tensor implementations, so that a run gives the same bits. Algebraically equal forms (a fused
// multiply-add, a division instead of a reciprocal and a product, another order of eps and square root) round
// differently. In particular, where Python works in place, so does the code here: LibTorch casts scalar factors
// differently in the two forms.
namespace accel::optim {
namespace {

bool on_cpu(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  for (const auto& tensor : tensors) {
    if (!tensor.is_cpu() || tensor.scalar_type() != dtype) return false;
  }
  return true;
}

}  // namespace

void count_steps(std::vector<at::Tensor>& steps) {
  if (!on_cpu(steps, at::kFloat)) {
    at::_foreach_add_(steps, 1);
    return;
  }
  // A loop over single numbers: dispatching an operator would take longer than the additions.
  for (auto& step : steps) *step.mutable_data_ptr<float>() += 1.0F;
}

std::vector<double> numbers_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> numbers;
  numbers.reserve(tensors.size());
  if (on_cpu(tensors, at::kFloat)) {
    for (const auto& tensor : tensors) numbers.push_back(*tensor.const_data_ptr<float>());
    return numbers;
  }
  // One copy from the device for all parameters instead of one synchronization per parameter.
  const auto together = at::stack(tensors).to(at::kCPU, at::kDouble);
  const auto* data = together.const_data_ptr<double>();
  numbers.assign(data, data + together.numel());
  return numbers;
}

at::Tensor factor(double number) { return at::native::wrapped_scalar_tensor(number); }

double python_power(double base, double exponent) { return std::pow(base, exponent); }

std::vector<at::Tensor> directed_gradients(const TensorLists& lists, const DirectionOptions& options) {
  if (!options.maximize)
    return options.weight_decay != 0 ? at::_foreach_add(lists.grads, lists.params, options.weight_decay) : lists.grads;
  // The negated gradients are new tensors, so the decay may be added in place, as in Python.
  auto grads = at::_foreach_neg(lists.grads);
  if (options.weight_decay != 0) at::_foreach_add_(grads, lists.params, options.weight_decay);
  return grads;
}

void decay_parameters(TensorLists& lists, double lr, double weight_decay) {
  if (weight_decay != 0) at::_foreach_mul_(lists.params, 1 - lr * weight_decay);
}

void update_moments(TensorLists& lists, const std::vector<at::Tensor>& grads, double beta1, double beta2) {
  at::_foreach_lerp_(lists["exp_avg"], grads, 1 - beta1);
  at::_foreach_mul_(lists["exp_avg_sq"], beta2);
  at::_foreach_addcmul_(lists["exp_avg_sq"], grads, grads, 1 - beta2);
}

}  // namespace accel::optim
