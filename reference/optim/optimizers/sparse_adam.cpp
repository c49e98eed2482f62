#include "reference/optim/optimizers/sparse_adam.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// SparseAdam as torch/optim/_functional.py, sparse_adam. One tensor after another, because there are no multi-tensor
// kernels for sparse tensors.
namespace accel::optim {
namespace {

// Python's step size, in its order of operations.
double step_size(double step, const SparseAdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  const double correction1 = 1 - python_power(beta1, step), correction2 = 1 - python_power(beta2, step);
  return options.lr * std::sqrt(correction2) / correction1;
}

struct Moments {
  at::Tensor& exp_avg;
  at::Tensor& exp_avg_sq;
};

void update_rows(const at::Tensor& param, const at::Tensor& grad, const Moments& moments, double step,
                 const SparseAdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  const auto values = grad._values();
  const auto sparse = [&](const at::Tensor& of_rows) {
    return at::sparse_coo_tensor(grad._indices(), of_rows, grad.sizes());
  };
  // old += (1 - beta) * (new - old), for the rows of the gradient.
  const auto old_avg = moments.exp_avg.sparse_mask(grad)._values();
  auto change = values.sub(old_avg).mul_(factor(1 - beta1));
  moments.exp_avg.add_(sparse(change));
  const auto old_sq = moments.exp_avg_sq.sparse_mask(grad)._values();
  auto change_sq = values.pow(2).sub_(old_sq).mul_(factor(1 - beta2));
  moments.exp_avg_sq.add_(sparse(change_sq));
  // The new moments of these rows. The sum rounds as in the state, and saves a second mask.
  const auto numerator = change.add_(old_avg);
  const auto denominator = change_sq.add_(old_sq).sqrt_().add_(options.eps);
  // Detached: for strided parameters LibTorch calls operators from other threads, which do not inherit the grad mode.
  param.detach().add_(sparse(numerator.div_(denominator).mul(factor(-step_size(step, options)))));
}

}  // namespace

std::string SparseAdamOptions::problem_of(const at::Tensor& param) {
  if (param.is_complex()) return "complex parameters are unsupported; use torch::optim::SGD";
  return param.is_sparse() ? "a parameter is sparse; expected dense parameters, whose gradients are sparse" : "";
}

std::vector<StateEntry> state_entries(const SparseAdamOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kCount}, {.name = "exp_avg"}, {.name = "exp_avg_sq"}};
}

void update(TensorLists& lists, const SparseAdamOptions& options) {
  count_steps(lists["step"]);
  const auto steps = numbers_of(lists["step"]);
  for (std::size_t param = 0; param < lists.params.size(); ++param) {
    // Each row once, because the update is not linear.
    const auto grad = (options.maximize ? -lists.grads[param] : lists.grads[param]).coalesce();
    if (grad._values().numel() == 0) continue;
    const Moments moments{lists["exp_avg"][param], lists["exp_avg_sq"][param]};
    update_rows(lists.params[param], grad, moments, steps[param], options);
  }
}

template class MultiTensorOptimizer<SparseAdamOptions>;

}  // namespace accel::optim
