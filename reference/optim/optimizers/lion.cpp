#include "reference/optim/optimizers/lion.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {

std::vector<StateEntry> state_entries(const LionOptions& /*options*/) { return {{.name = "exp_avg"}}; }

void update(TensorLists& lists, const LionOptions& options) {
  const auto [beta1, beta2] = options.betas;
  at::_foreach_mul_(lists.params, factor(1 - options.lr * options.weight_decay));
  // Two products and a sum, each rounded: a lerp could give a sum near 0 another sign.
  auto directions = at::_foreach_mul(lists["exp_avg"], factor(beta1));
  at::_foreach_add_(directions, at::_foreach_mul(lists.grads, factor(1 - beta1)));
  at::_foreach_sign_(directions);
  at::_foreach_add_(lists.params, directions, -options.lr);
  // After the step, which uses the momentum of the last one.
  at::_foreach_mul_(lists["exp_avg"], factor(beta2));
  at::_foreach_add_(lists["exp_avg"], lists.grads, 1 - beta2);
}

template class MultiTensorOptimizer<LionOptions>;

}  // namespace accel::optim
