#include "reference/optim/optimizers/adam_variants.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Adamax, NAdam and RAdam, as the _multi_tensor_ functions of torch/optim/adamax.py, nadam.py and radam.py. See Note
// [Order of foreach operations].
namespace accel::optim {
namespace {

// NAdam: the coefficients of the gradients and of their averages in the step.
struct StepSizes {
  std::vector<at::Scalar> grads, exp_avgs;
};

// Also multiplies each mu_product by its mu. Scalars are computed in double on the host, like Python's floats.
StepSizes step_sizes(TensorLists& lists, const NAdamOptions& options) {
  const auto beta1 = std::get<0>(options.betas);
  const auto mu = [&](double step) { return beta1 * (1.0 - 0.5 * python_power(0.96, step * options.momentum_decay)); };
  const auto steps = numbers_of(lists["step"]);
  at::_foreach_mul_(lists["mu_product"], scalars_of(steps, mu));
  const auto products = numbers_of(lists["mu_product"]);
  StepSizes sizes;
  for (std::size_t param = 0; param < steps.size(); ++param) {
    const auto next = mu(steps[param] + 1);
    sizes.grads.emplace_back(options.lr * (1.0 - mu(steps[param])) / (1.0 - products[param]) * -1);
    sizes.exp_avgs.emplace_back(options.lr * next / (1.0 - products[param] * next) * -1);
  }
  return sizes;
}

// RAdam: the rectification term r_t; 0 in the first steps, in which the variance of the second moment is intractable
// and the step is one of SGD with momentum. `!(rho > 5)` also covers NaN.
double rectification(double step, double beta2) {
  const double rho_inf = 2 / (1 - beta2) - 1;
  const double rho = rho_inf - 2 * step * python_power(beta2, step) / (1 - python_power(beta2, step));
  if (!(rho > 5)) return 0;
  return python_power((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho), 0.5);
}

}  // namespace

std::vector<StateEntry> state_entries(const AdamaxOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar}, {.name = "exp_avg"}, {.name = "exp_inf"}};
}

void update(TensorLists& lists, const AdamaxOptions& options) {
  const auto [beta1, beta2] = options.betas;
  const auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  count_steps(lists["step"]);
  at::_foreach_lerp_(lists["exp_avg"], grads, 1 - beta1);

  at::_foreach_mul_(lists["exp_inf"], beta2);
  auto sizes = at::_foreach_abs(grads);
  // eps is added to the gradient's magnitude before the maximum, so that exp_inf never is 0.
  at::_foreach_add_(sizes, options.eps);
  at::_foreach_maximum_(lists["exp_inf"], sizes);

  // Negated rates, since addcdiv adds. Python computes them in this form, and the sign does not affect rounding.
  const auto rates = scalars_of(numbers_of(lists["step"]), [&, beta1 = beta1](double step) {
    return options.lr / (1 - python_power(beta1, step)) * -1;
  });
  at::_foreach_addcdiv_(lists.params, lists["exp_avg"], lists["exp_inf"], rates);
}

template class MultiTensorOptimizer<AdamaxOptions>;

std::vector<StateEntry> state_entries(const NAdamOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar},
          {.name = "mu_product", .kind = StateEntry::Kind::kScalar, .initial = 1},
          {.name = "exp_avg"},
          {.name = "exp_avg_sq"}};
}

void update(TensorLists& lists, const NAdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  count_steps(lists["step"]);
  if (options.decoupled_weight_decay) decay_parameters(lists, options.lr, options.weight_decay);
  const auto coupled_decay = options.decoupled_weight_decay ? 0 : options.weight_decay;
  const auto grads = directed_gradients(lists, {.weight_decay = coupled_decay, .maximize = options.maximize});
  update_moments(lists, grads, beta1, beta2);

  auto denominators = at::_foreach_sqrt(lists["exp_avg_sq"]);
  const auto corrections = scalars_of(numbers_of(lists["step"]), [beta2 = beta2](double step) {
    return python_power(1 - python_power(beta2, step), 0.5);
  });
  // Before the divisions: it reads and changes mu_product only.
  const auto sizes = step_sizes(lists, options);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps);
  at::_foreach_addcdiv_(lists.params, grads, denominators, sizes.grads);
  at::_foreach_addcdiv_(lists.params, lists["exp_avg"], denominators, sizes.exp_avgs);
}

template class MultiTensorOptimizer<NAdamOptions>;

std::vector<StateEntry> state_entries(const RAdamOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar}, {.name = "exp_avg"}, {.name = "exp_avg_sq"}};
}

void update(TensorLists& lists, const RAdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  count_steps(lists["step"]);
  if (options.decoupled_weight_decay) decay_parameters(lists, options.lr, options.weight_decay);
  const auto coupled_decay = options.decoupled_weight_decay ? 0 : options.weight_decay;
  const auto grads = directed_gradients(lists, {.weight_decay = coupled_decay, .maximize = options.maximize});
  update_moments(lists, grads, beta1, beta2);

  const auto steps = numbers_of(lists["step"]);
  // For each parameter, `plain` or `rectified` is 0; adding both avoids a branch per tensor.
  const auto plain = scalars_of(steps, [&, beta1 = beta1, beta2 = beta2](double step) {
    return options.lr * (rectification(step, beta2) > 0 ? 0.0 : 1.0) / (1 - python_power(beta1, step)) * -1;
  });
  const auto rectified = scalars_of(steps, [&, beta1 = beta1, beta2 = beta2](double step) {
    const auto rate = options.lr * rectification(step, beta2) / (1 - python_power(beta1, step));
    return python_power(1 - python_power(beta2, step), 0.5) * rate * -1;
  });
  auto factors = at::_foreach_sqrt(lists["exp_avg_sq"]);
  at::_foreach_add_(factors, options.eps);
  at::_foreach_div_(factors, rectified);  // before rectification a division by -0: the reciprocal then is -0
  at::_foreach_reciprocal_(factors);
  at::_foreach_add_(factors, plain);
  at::_foreach_addcmul_(lists.params, lists["exp_avg"], factors);
}

template class MultiTensorOptimizer<RAdamOptions>;

}  // namespace accel::optim
