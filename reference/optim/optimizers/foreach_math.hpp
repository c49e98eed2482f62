#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "reference/optim/state_dict/tensor_lists.hpp"

/// Operations that the multi-tensor implementations of Python's optimizers share.
///
///     auto grads = directed_gradients(lists, {.weight_decay = 0.01, .maximize = false});
///     count_steps(lists["step"]);
///     auto corrections = scalars_of(numbers_of(lists["step"]),
///                                   [](double step) { return 1 - python_power(0.9, step); });
///
/// Scalar arithmetic is Python's: in double, in the same order. Thread rule: pure except for changes to the lists.
/// Source: torch/optim/*.py, _multi_tensor_*.
namespace accel::optim {

/// The form in which kernels accept a tensor that may be undefined.
inline std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Adds 1 to each step count.
void count_steps(std::vector<at::Tensor>& steps);
/// The values of one-element tensors.
std::vector<double> numbers_of(const std::vector<at::Tensor>& tensors);
/// `base ** exponent`. A separate function in its own translation unit, because compilers replace a power of 0.5 by a
/// square root, which rounds differently.
double python_power(double base, double exponent);

/// A number in the form in which Python's operators multiply a tensor by it. LibTorch's overloads for at::Scalar, which
/// multi-tensor operators call for each tensor, first round it to the tensor's dtype.
at::Tensor factor(double number);

template <typename F>
std::vector<at::Scalar> scalars_of(const std::vector<double>& numbers, F&& f) {
  std::vector<at::Scalar> scalars;
  scalars.reserve(numbers.size());
  for (const double number : numbers) scalars.emplace_back(f(number));
  return scalars;
}

struct DirectionOptions {
  double weight_decay = 0;
  bool maximize = false;
};
/// The gradients to step along: negated if `maximize`, plus the parameters times `weight_decay`. New tensors if either
/// option is set, else the gradients themselves.
std::vector<at::Tensor> directed_gradients(const TensorLists& lists, const DirectionOptions& options);

/// AdamW's decoupled weight decay: shrinks the parameters by `lr` times `weight_decay`.
void decay_parameters(TensorLists& lists, double lr, double weight_decay);

/// Updates exp_avg and exp_avg_sq of Adam and its variants.
void update_moments(TensorLists& lists, const std::vector<at::Tensor>& grads, double beta1, double beta2);

}  // namespace accel::optim
