#include "reference/optim/accelerated_optimizer.hpp"

#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"

namespace accel {

void AcceleratedOptimizer::step() {
  if (!context_->gradient_state.sync_gradients) return;
  const auto listener = context_->listener.get();
  const PhaseScope phase(listener, "optimizer");
  if (listener != nullptr) listener->before_update();
  optimizer_->step();
  if (listener != nullptr) listener->after_update();
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!context_->gradient_state.sync_gradients) return;
  // As Python's. LibTorch's own detaches in place first, which views of DDP's buckets (gradient_as_bucket_view) refuse.
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.grad_fn() ? gradient.detach_() : gradient.requires_grad_(false);
        gradient.zero_();
      }
    }
  }
}

double AcceleratedOptimizer::lr(std::size_t group) const {
  auto& groups = optimizer_->param_groups();
  check_argument(group < groups.size(), "lr: group {} of {}", group, groups.size());
  return groups[group].options().get_lr();
}

void AcceleratedScheduler::step() {
  if (!options_.step_with_optimizer) {
    scheduler_->step();
    return;
  }
  if (!context_->gradient_state.sync_gradients) return;
  const int steps = options_.split_batches ? 1 : context_->world_size;
  for (int step = 0; step < steps; ++step) scheduler_->step();
}

}  // namespace accel
