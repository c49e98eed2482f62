#include "reference/optim/optimizers/fused_adam.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Adam and AdamW differ only in how weight decay is applied, so AdamW is converted to Adam's options.
namespace accel::optim {
namespace {

template <typename Options>
void assign_shared(Options& options, const typename Options::LibTorch& from) {
  options.lr = from.lr();
  options.betas = from.betas();
  options.eps = from.eps();
  options.weight_decay = from.weight_decay();
  options.amsgrad = from.amsgrad();
}

template <typename Options>
void assign_shared_to(const Options& options, typename Options::LibTorch& to) {
  to.lr(options.lr).betas(options.betas).eps(options.eps).weight_decay(options.weight_decay).amsgrad(options.amsgrad);
}

// Fused kernels read the step on the parameter's device. Otherwise it stays on the CPU, where reading it does not wait.
std::vector<StateEntry> entries(bool fused, bool amsgrad) {
  return {{.name = "step", .kind = fused ? StateEntry::Kind::kFusedStep : StateEntry::Kind::kScalar},
          {.name = "exp_avg"},
          {.name = "exp_avg_sq"},
          {.name = "max_exp_avg_sq", .used = amsgrad}};
}

// The kernels accept the learning rate as a number, or as a tensor that they read on the device. The {} is grad_scale:
// the GradScaler unscales separately.
void update_fused(TensorLists& lists, const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  const auto largest = options.amsgrad ? at::TensorList(lists["max_exp_avg_sq"]) : at::TensorList();
  const auto run = [&, beta1 = beta1, beta2 = beta2](auto kernel, const auto& lr) {
    kernel(lists.params, lists.grads, lists["exp_avg"], lists["exp_avg_sq"], largest, lists["step"], lr, beta1, beta2,
           options.weight_decay, options.eps, options.amsgrad, options.maximize, {}, to_optional(lists.found_inf));
  };
  count_steps(lists["step"]);
  if (lists.lr.defined()) {
    options.decoupled_weight_decay ? run(&at::_ops::_fused_adamw__tensor_lr::call, lists.lr)
                                   : run(&at::_ops::_fused_adam__tensor_lr::call, lists.lr);
  } else {
    options.decoupled_weight_decay ? run(&at::_ops::_fused_adamw_::call, options.lr)
                                   : run(&at::_ops::_fused_adam_::call, options.lr);
  }
  // The kernel needs the new count even if it skips.
  if (lists.found_inf.defined()) at::_foreach_add_(lists["step"], lists.found_inf, -1);
}

// torch/optim/adam.py, _multi_tensor_adam, for steps on the host (not capturable). See Note [Order of foreach
// operations].
void update_foreach(TensorLists& lists, const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas;
  const auto coupled_decay = options.decoupled_weight_decay ? 0 : options.weight_decay;
  // Decay first, on the parameters alone, as in Python.
  if (options.decoupled_weight_decay) decay_parameters(lists, options.lr, options.weight_decay);
  const auto grads = directed_gradients(lists, {.weight_decay = coupled_decay, .maximize = options.maximize});
  count_steps(lists["step"]);
  update_moments(lists, grads, beta1, beta2);
  // In place, because the maximum over all steps is itself part of the state.
  if (options.amsgrad) at::_foreach_maximum_(lists["max_exp_avg_sq"], lists["exp_avg_sq"]);
  auto denominators = at::_foreach_sqrt(options.amsgrad ? lists["max_exp_avg_sq"] : lists["exp_avg_sq"]);

  const auto steps = numbers_of(lists["step"]);
  const auto corrections =
      scalars_of(steps, [beta2 = beta2](double step) { return python_power(1 - python_power(beta2, step), 0.5); });
  const auto sizes =
      scalars_of(steps, [&, beta1 = beta1](double step) { return options.lr / (1 - python_power(beta1, step)) * -1; });
  // sqrt(v) / sqrt(1 - beta2^t) + eps: eps comes after the correction.
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps);
  at::_foreach_addcdiv_(lists.params, lists["exp_avg"], denominators, sizes);
}

// As in Python, where AdamW is an Adam with decoupled_weight_decay.
AdamOptions as_adam(const AdamWOptions& options) {
  return {.lr = options.lr,
          .betas = options.betas,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .amsgrad = options.amsgrad,
          .maximize = options.maximize,
          .decoupled_weight_decay = true,
          .fused = options.fused};
}

}  // namespace

void AdamOptions::assign(const LibTorch& from) { assign_shared(*this, from); }
void AdamOptions::assign_to(LibTorch& to) const { assign_shared_to(*this, to); }
void AdamWOptions::assign(const LibTorch& from) { assign_shared(*this, from); }
void AdamWOptions::assign_to(LibTorch& to) const { assign_shared_to(*this, to); }

std::vector<StateEntry> state_entries(const AdamOptions& options) { return entries(options.fused, options.amsgrad); }
std::vector<StateEntry> state_entries(const AdamWOptions& options) { return entries(options.fused, options.amsgrad); }

void update(TensorLists& lists, const AdamOptions& options) {
  options.fused ? update_fused(lists, options) : update_foreach(lists, options);
}
void update(TensorLists& lists, const AdamWOptions& options) { update(lists, as_adam(options)); }

template class MultiTensorOptimizer<AdamOptions>;
template class MultiTensorOptimizer<AdamWOptions>;

}  // namespace accel::optim
