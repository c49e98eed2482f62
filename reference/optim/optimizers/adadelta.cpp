#include "reference/optim/optimizers/adadelta.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Adadelta as torch/optim/adadelta.py, _multi_tensor_adadelta. See Note [Order of foreach operations].
namespace accel::optim {

std::vector<StateEntry> state_entries(const AdadeltaOptions& /*options*/) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar}, {.name = "square_avg"}, {.name = "acc_delta"}};
}

void update(TensorLists& lists, const AdadeltaOptions& options) {
  auto &square_avgs = lists["square_avg"], &acc_deltas = lists["acc_delta"];
  count_steps(lists["step"]);
  const auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  at::_foreach_mul_(square_avgs, options.rho);
  at::_foreach_addcmul_(square_avgs, grads, grads, 1 - options.rho);

  // A new list: square_avgs is state.
  auto deviations = at::_foreach_add(square_avgs, options.eps);
  at::_foreach_sqrt_(deviations);
  auto deltas = at::_foreach_add(acc_deltas, options.eps);
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, deviations);
  at::_foreach_mul_(deltas, grads);

  // After `deltas`: the step uses the average of the previous steps, without this one.
  at::_foreach_mul_(acc_deltas, options.rho);
  at::_foreach_addcmul_(acc_deltas, deltas, deltas, 1 - options.rho);
  at::_foreach_add_(lists.params, deltas, -options.lr);
}

template class MultiTensorOptimizer<AdadeltaOptions>;

}  // namespace accel::optim
