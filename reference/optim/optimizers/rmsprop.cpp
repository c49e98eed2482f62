#include "reference/optim/optimizers/rmsprop.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// RMSprop as torch/optim/rmsprop.py, _multi_tensor_rmsprop. See Note [Order of foreach operations].
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

// As in Python, optional tensors exist only if the options use them; gather_tensors reports options that changed later.
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
    // Not in place: square_avgs is state, while the variance is needed in this step only.
    averages = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
    at::_foreach_sqrt_(averages);
  } else {
    averages = at::_foreach_sqrt(square_avgs);
  }
  // After the square root, as in torch; TensorFlow adds it before.
  at::_foreach_add_(averages, options.eps);

  // With momentum the rate is applied to the buffer, not to the gradient, as in Python.
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

}  // namespace accel::optim
