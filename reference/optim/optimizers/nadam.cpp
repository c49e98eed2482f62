#include "reference/optim/optimizers/nadam.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {
namespace {

// The factors of the gradients and of their averages in the step.
struct StepSizes {
  std::vector<at::Scalar> grads, exp_avgs;
};

// Also multiplies each mu_product by its mu.
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

}  // namespace

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
  const auto sizes = step_sizes(lists, options);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps);
  at::_foreach_addcdiv_(lists.params, grads, denominators, sizes.grads);
  at::_foreach_addcdiv_(lists.params, lists["exp_avg"], denominators, sizes.exp_avgs);
}

template class MultiTensorOptimizer<NAdamOptions>;

}  // namespace accel::optim
