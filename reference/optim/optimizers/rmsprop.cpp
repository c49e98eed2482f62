#include "reference/optim/optimizers/rmsprop.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {

void RMSpropOptions::assign(const LibTorch& from) {
  lr = from.lr();
  alpha = from.alpha();
  eps = from.eps();
  weight_decay = from.weight_decay();
  momentum = from.momentum();
  centered = from.centered();
}

void RMSpropOptions::assign_to(LibTorch& to) const {
  to.lr(lr).alpha(alpha).eps(eps).weight_decay(weight_decay).momentum(momentum).centered(centered);
}

std::vector<StateEntry> state_entries(const RMSpropOptions& options) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar},
          {.name = "square_avg"},
          {.name = "momentum_buffer", .used = options.momentum > 0},
          {.name = "grad_avg", .used = options.centered}};
}

void update(TensorLists& lists, const RMSpropOptions& options) {
  const auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  auto& square_avgs = lists["square_avg"];
  count_steps(lists["step"]);
  at::_foreach_mul_(square_avgs, options.alpha);
  at::_foreach_addcmul_(square_avgs, grads, grads, 1 - options.alpha);

  std::vector<at::Tensor> averages;
  if (options.centered) {
    auto& grad_avgs = lists["grad_avg"];
    at::_foreach_lerp_(grad_avgs, grads, 1 - options.alpha);
    averages = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
    at::_foreach_sqrt_(averages);
  } else {
    averages = at::_foreach_sqrt(square_avgs);
  }
  at::_foreach_add_(averages, options.eps);

  if (options.momentum > 0) {
    auto& buffers = lists["momentum_buffer"];
    at::_foreach_mul_(buffers, options.momentum);
    at::_foreach_addcdiv_(buffers, grads, averages);
    at::_foreach_add_(lists.params, buffers, -options.lr);
  } else {
    at::_foreach_addcdiv_(lists.params, grads, averages, -options.lr);
  }
}

template class MultiTensorOptimizer<RMSpropOptions>;

std::vector<StateEntry> state_entries(const AdadeltaOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar}, {.name = "square_avg"}, {.name = "acc_delta"}};
}

void update(TensorLists& lists, const AdadeltaOptions& options) {
  auto &square_avgs = lists["square_avg"], &acc_deltas = lists["acc_delta"];
  count_steps(lists["step"]);
  const auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  at::_foreach_mul_(square_avgs, options.rho);
  at::_foreach_addcmul_(square_avgs, grads, grads, 1 - options.rho);

  auto deviations = at::_foreach_add(square_avgs, options.eps);
  at::_foreach_sqrt_(deviations);
  auto deltas = at::_foreach_add(acc_deltas, options.eps);
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, deviations);
  at::_foreach_mul_(deltas, grads);

  at::_foreach_mul_(acc_deltas, options.rho);
  at::_foreach_addcmul_(acc_deltas, deltas, deltas, 1 - options.rho);
  at::_foreach_add_(lists.params, deltas, -options.lr);
}

template class MultiTensorOptimizer<AdadeltaOptions>;

}  // namespace accel::optim
