#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

/// Small parameters and gradients for tests of optimizers.
///
/// Example: `auto params = odd_parameters(); SGD optimizer(params); run_steps(optimizer, params, {.from = 0, .to =
/// 10});`
///
/// Thread rule: the calling thread.
namespace accel::testing {

template <typename Options>
inline constexpr bool kForMatricesOnly = std::same_as<Options, optim::MuonOptions>;
template <typename Options>
inline constexpr bool kForSparseGradients = std::same_as<Options, optim::SparseAdamOptions>;

/// Returns parameters of one element, of fewer elements than a vector register, and of more with a remainder. With
/// `Options` of an optimizer for matrices, all are matrices.
template <typename Options = optim::SGDOptions>
std::vector<at::Tensor> odd_parameters(at::ScalarType dtype = at::kFloat) {
  const auto generator = make_generator(0);
  std::vector<at::Tensor> params;
  for (std::vector<std::int64_t> shape : {std::vector<std::int64_t>{1}, {3}, {5, 13}}) {
    if (kForMatricesOnly<Options> && shape.size() == 1) shape.push_back(1);
    params.push_back(at::randn(shape, generator, dtype).requires_grad_());
  }
  return params;
}

/// The gradient in the layout that the optimizer requires.
template <typename Options>
at::Tensor in_layout_of(const at::Tensor& gradient) {
  return kForSparseGradients<Options> ? gradient.to_sparse() : gradient;
}

struct StepRange {
  int from = 0, to = 0;
};

/// Performs steps on gradients that depend on the step's number only.
inline void run_steps(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, StepRange range) {
  const bool is_sparse = dynamic_cast<optim::SparseAdam*>(&optimizer) != nullptr;
  for (int step = range.from; step < range.to; ++step) {
    const auto generator = make_generator(1000 + step);
    for (const auto& param : params) {
      const auto gradient = at::randn(param.sizes(), generator, param.options().requires_grad(false));
      param.mutable_grad() = is_sparse ? gradient.to_sparse() : gradient;
    }
    optimizer.step();
  }
}

inline bool equal_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t index = 0; index < a.size(); ++index) {
    if (!a[index].equal(b[index])) return false;
  }
  return a.size() == b.size();
}

/// Returns options for which an optimizer keeps all of its optional state.
template <typename Options>
Options with_all_state() {
  Options options;
  options.lr = 0.05;
  if constexpr (requires { options.momentum; }) options.momentum = 0.9;
  if constexpr (requires { options.amsgrad; }) options.amsgrad = true;
  if constexpr (requires { options.centered; }) options.centered = true;
  if constexpr (requires { options.lr_decay; }) options.lr_decay = 0.1;
  return options;
}

using AllOptions = optim::OptionsOfAll<::testing::Types>;

/// Returns the message of the `Error` that `f` throws, or "" if it throws none.
template <typename Error, typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class OptionsNames {
 public:
  template <typename Options>
  static std::string GetName(int) {
    return Options::kName;
  }
};

}  // namespace accel::testing
