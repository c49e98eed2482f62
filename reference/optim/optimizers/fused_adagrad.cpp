#include "reference/optim/optimizers/fused_adagrad.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {
namespace {

void update_fused(TensorLists& lists, const AdagradOptions& options) {
  count_steps(lists["step"]);
  at::_fused_adagrad_(lists.params, lists.grads, lists["sum"], lists["step"], options.lr, options.lr_decay,
                      options.weight_decay, options.eps, options.maximize);
}

void update_foreach(TensorLists& lists, const AdagradOptions& options) {
  auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  count_steps(lists["step"]);
  const auto rates = scalars_of(numbers_of(lists["step"]),
                                [&](double step) { return -options.lr / (1 + (step - 1) * options.lr_decay); });
  // Before the rates are applied, so `sum` holds squares of gradients, not of steps.
  at::_foreach_addcmul_(lists["sum"], grads, grads, 1);
  auto deviations = at::_foreach_sqrt(lists["sum"]);
  at::_foreach_add_(deviations, options.eps);
  // In place where Python works in place: LibTorch rounds the factor to bfloat16 there, but not elsewhere. See Note
  // [Order of foreach operations].
  if (options.weight_decay != 0 || options.maximize) {
    at::_foreach_mul_(grads, rates);
  } else {
    grads = at::_foreach_mul(grads, rates);
  }
  at::_foreach_addcdiv_(lists.params, grads, deviations);
}

}  // namespace

void AdagradOptions::assign(const LibTorch& from) {
  lr = from.lr();
  lr_decay = from.lr_decay();
  weight_decay = from.weight_decay();
  initial_accumulator_value = from.initial_accumulator_value();
  eps = from.eps();
}

void AdagradOptions::assign_to(LibTorch& to) const {
  to.lr(lr).lr_decay(lr_decay).weight_decay(weight_decay).initial_accumulator_value(initial_accumulator_value).eps(eps);
}

// The fused kernel reads a float32 step whatever the default dtype is.
std::vector<StateEntry> state_entries(const AdagradOptions& options) {
  return {{.name = "step", .kind = options.fused ? StateEntry::Kind::kFloatScalar : StateEntry::Kind::kScalar},
          {.name = "sum", .initial = options.initial_accumulator_value}};
}

// The fused kernel exists for the CPU only; all tensors of a list are on one device.
void update(TensorLists& lists, const AdagradOptions& options) {
  options.fused&& lists.params.front().is_cpu() ? update_fused(lists, options) : update_foreach(lists, options);
}

template class MultiTensorOptimizer<AdagradOptions>;

}  // namespace accel::optim
