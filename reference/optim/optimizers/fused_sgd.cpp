#include "reference/optim/optimizers/fused_sgd.hpp"

#include <ATen/ATen.h>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {
namespace {

// Creates the momentum buffers in the first step; returns whether it did. A parameter whose first gradient arrives
// later has its own lists and therefore its own first step; Python's fused SGD fails there. The kernel fills the new
// buffers, so they may be uninitialized, unless it may skip.
bool make_buffers(TensorLists& lists) {
  auto& buffers = lists["momentum_buffer"];
  if (!buffers.empty()) return false;
  for (std::size_t param = 0; param < lists.params.size(); ++param) {
    buffers.push_back(lists.found_inf.defined() ? at::zeros_like(lists.grads[param])
                                                : at::empty_like(lists.grads[param]));
    lists.owners[param]->tensors[0] = buffers.back();
  }
  return true;
}

void update_fused(TensorLists& lists, const SGDOptions& options) {
  // In its first step the kernel copies the gradient into the buffer, without dampening, as Python does.
  const bool is_first_step = options.momentum != 0 && make_buffers(lists);
  const auto buffers = options.momentum != 0 ? at::TensorList(lists["momentum_buffer"]) : at::TensorList();
  const auto run = [&](auto kernel, const auto& lr) {
    kernel(lists.params, lists.grads, buffers, options.weight_decay, options.momentum, lr, options.dampening,
           options.nesterov, options.maximize, is_first_step, /*grad_scale=*/{}, to_optional(lists.found_inf));
  };
  if (lists.lr.defined())
    run(&at::_ops::_fused_sgd__tensor_lr::call, lists.lr);
  else
    run(&at::_ops::_fused_sgd_::call, options.lr);
}

void update_foreach(TensorLists& lists, const SGDOptions& options) {
  auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  if (options.momentum != 0) {
    auto& buffers = lists["momentum_buffer"];
    if (make_buffers(lists)) {
      // The first step has no dampening.
      at::_foreach_copy_(buffers, grads);
    } else {
      at::_foreach_mul_(buffers, options.momentum);
      at::_foreach_add_(buffers, grads, 1 - options.dampening);
    }
    if (options.nesterov) {
      // As in Python, this changes the parameters' own gradients unless weight decay or maximize made new tensors.
      at::_foreach_add_(grads, buffers, options.momentum);
    } else {
      grads = buffers;
    }
  }
  at::_foreach_add_(lists.params, grads, -options.lr);
}

// On the CPU the fused kernel leaves most bfloat16 and float16 elements unchanged and their momentum uninitialized:
// https://github.com/pytorch/pytorch/issues/191763.
bool is_fused_kernel_correct(const at::Tensor& param) {
  return !param.is_cpu() || !at::isReducedFloatingType(param.scalar_type());
}

}  // namespace

std::vector<OptionProblem> SGDOptions::problems_between() const {
  if (!nesterov || (momentum > 0 && dampening == 0)) return {};
  return {{"nesterov", fmt::format("expected momentum above 0 and dampening 0, got {} and {}", momentum, dampening)}};
}

void SGDOptions::assign(const LibTorch& from) {
  lr = from.lr();
  momentum = from.momentum();
  dampening = from.dampening();
  weight_decay = from.weight_decay();
  nesterov = from.nesterov();
}

void SGDOptions::assign_to(LibTorch& to) const {
  to.lr(lr).momentum(momentum).dampening(dampening).weight_decay(weight_decay).nesterov(nesterov);
}

// Not created with the state: make_buffers does it, since the first gradient is its initial value.
std::vector<StateEntry> state_entries(const SGDOptions& /*options*/) {
  return {{.name = "momentum_buffer", .used = false}};
}

void update(TensorLists& lists, const SGDOptions& options) {
  options.fused&& is_fused_kernel_correct(lists.params.front()) ? update_fused(lists, options)
                                                                : update_foreach(lists, options);
}

template class MultiTensorOptimizer<SGDOptions>;

}  // namespace accel::optim
