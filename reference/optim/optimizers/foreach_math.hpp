#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "reference/optim/state_dict/tensor_lists.hpp"

/// What the multi-tensor forms of Python's optimizers have in common.
///
///     auto grads = directed_gradients(lists, {.weight_decay = 0.01, .maximize = false});
///     count_steps(lists["step"]);
///     auto corrections = scalars_of(numbers_of(lists["step"]),
///                                   [](double step) { return 1 - python_power(0.9, step); });
///
/// Arithmetic on plain numbers is Python's: in double, in the order written there. Thread rule: pure but for the lists.
/// Source: torch/optim/*.py, _multi_tensor_*.
namespace accel::optim {

/// Adds 1 to each.
void count_steps(std::vector<at::Tensor>& steps);
/// The values of tensors of one element.
std::vector<double> numbers_of(const std::vector<at::Tensor>& tensors);
/// `base ** exponent`. A function of its own, since compilers turn a power of 0.5 into a square root, which rounds
/// otherwise.
double python_power(double base, double exponent);

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
/// The gradients to go by: negated if `maximize`, plus the parameters times `weight_decay`. New tensors if either is
/// asked for, the gradients themselves otherwise.
std::vector<at::Tensor> directed_gradients(const TensorLists& lists, const DirectionOptions& options);

/// AdamW's: shrinks the parameters by `lr` times `weight_decay`.
void decay_parameters(TensorLists& lists, double lr, double weight_decay);

/// exp_avg and exp_avg_sq of Adam and its kin.
void update_moments(TensorLists& lists, const std::vector<at::Tensor>& grads, double beta1, double beta2);

}  // namespace accel::optim
