#include "reference/optim/optimizers/radam.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {
namespace {

// 0 while the variance of the second moment is too large to be rectified.
double rectification(double step, double beta2) {
  const double rho_inf = 2 / (1 - beta2) - 1;
  const double rho = rho_inf - 2 * step * python_power(beta2, step) / (1 - python_power(beta2, step));
  if (!(rho > 5)) return 0;
  return python_power((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho), 0.5);
}

}  // namespace

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
  const auto plain = scalars_of(steps, [&, beta1 = beta1, beta2 = beta2](double step) {
    return options.lr * (rectification(step, beta2) > 0 ? 0.0 : 1.0) / (1 - python_power(beta1, step)) * -1;
  });
  const auto rectified = scalars_of(steps, [&, beta1 = beta1, beta2 = beta2](double step) {
    const auto rate = options.lr * rectification(step, beta2) / (1 - python_power(beta1, step));
    return python_power(1 - python_power(beta2, step), 0.5) * rate * -1;
  });
  auto factors = at::_foreach_sqrt(lists["exp_avg_sq"]);
  at::_foreach_add_(factors, options.eps);
  at::_foreach_div_(factors, rectified);  // by -0 before rectification: its reciprocal is then -0
  at::_foreach_reciprocal_(factors);
  at::_foreach_add_(factors, plain);
  at::_foreach_addcmul_(lists.params, lists["exp_avg"], factors);
}

template class MultiTensorOptimizer<RAdamOptions>;

}  // namespace accel::optim
