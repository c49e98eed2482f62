#include "reference/optim/optimizers/rprop.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Rprop with multi-tensor operations. Python indexes with masks (`sign[sign.gt(0)] = etaplus`), one operator per
// tensor; here arithmetic on signs gives the same values with a fixed number of kernels for all tensors.
namespace accel::optim {
namespace {

// The factor for each step size: `larger` where the sign is 1, `smaller` where it is -1, else 1. sign * larger + 1 is
// above `larger`, 1, or below 0; the clamps turn the outer two into the factors.
std::vector<at::Tensor> factors_of(const std::vector<at::Tensor>& signs, const RpropOptions& options) {
  const auto [smaller, larger] = options.etas;
  auto factors = at::_foreach_mul(signs, larger);
  at::_foreach_add_(factors, 1);
  at::_foreach_clamp_min_(factors, smaller);
  at::_foreach_clamp_max_(factors, larger);
  return factors;
}

// Writes 0 where the sign is -1. There are no multi-tensor kernels for masks, and a product with 0 would turn an
// infinite gradient into NaN. Instead the gradients are clamped to bounds that are 0 there and infinite elsewhere.
void zero_where_sign_changed(std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& signs) {
  auto bounds = at::_foreach_clamp_max(signs, 0);
  at::_foreach_neg_(bounds);
  at::_foreach_log_(bounds);  // log(1) = 0, log(0) = -inf
  at::_foreach_clamp_min_(gradients, bounds);
  at::_foreach_abs_(bounds);
  at::_foreach_clamp_max_(gradients, bounds);
}

}  // namespace

std::vector<StateEntry> state_entries(const RpropOptions& options) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar},
          {.name = "prev"},
          {.name = "step_size", .initial = options.lr}};
}

void update(TensorLists& lists, const RpropOptions& options) {
  const auto [least, most] = options.step_sizes;
  auto &prevs = lists["prev"], &sizes = lists["step_size"];
  count_steps(lists["step"]);
  // Positive where the gradient kept its sign since the last step.
  auto signs = at::_foreach_mul(lists.grads, prevs);
  at::_foreach_copy_(prevs, lists.grads);
  if (options.maximize) {
    at::_foreach_neg_(signs);
    at::_foreach_neg_(prevs);
  }
  at::_foreach_sign_(signs);
  at::_foreach_mul_(sizes, factors_of(signs, options));
  at::_foreach_clamp_min_(sizes, least);
  at::_foreach_clamp_max_(sizes, most);
  // Where the gradient changed its sign, this step is skipped, and the next one starts without a previous gradient.
  zero_where_sign_changed(prevs, signs);
  at::_foreach_addcmul_(lists.params, at::_foreach_sign(prevs), sizes, -1);
}

template class MultiTensorOptimizer<RpropOptions>;

}  // namespace accel::optim
