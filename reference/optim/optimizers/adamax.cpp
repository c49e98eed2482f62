#include "reference/optim/optimizers/adamax.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {

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
  at::_foreach_add_(sizes, options.eps);
  at::_foreach_maximum_(lists["exp_inf"], sizes);

  const auto rates = scalars_of(numbers_of(lists["step"]), [&, beta1 = beta1](double step) {
    return options.lr / (1 - python_power(beta1, step)) * -1;
  });
  at::_foreach_addcdiv_(lists.params, lists["exp_avg"], lists["exp_inf"], rates);
}

template class MultiTensorOptimizer<AdamaxOptions>;

}  // namespace accel::optim
