#include "reference/accelerator/local_sgd.hpp"

#include <utility>

#include "reference/core/errors.hpp"

namespace accel {

LocalSGD::LocalSGD(Accelerator& accelerator, std::vector<at::Tensor> parameters, LocalSGDOptions options)
    : accelerator_(&accelerator),
      parameters_(std::move(parameters)),
      options_(options),
      enabled_(options.enabled && accelerator.distributed_type() != DistributedType::kNo) {
  const auto type = accelerator.distributed_type();
  check_state(
      type != DistributedType::kFsdp && type != DistributedType::kDeepSpeed && type != DistributedType::kMegatronLm,
      "LocalSGD: does not support fsdp_plugin, deepspeed_plugin or megatron_lm_plugin, since each rank holds "
      "only a part of the model; train with plain data parallelism");
  check_state(!accelerator.has_master_weights(),
              "LocalSGD: does not support master_weights: an average of bfloat16 weights loses what each step adds; "
              "train without master_weights");
  const auto& sizes = accelerator.mesh().config();
  check_state(!sizes.tp_enabled() && !sizes.ep_enabled() && sizes.pp_size == 1,
              "LocalSGD: tp_size {}, pp_size {} and ep_size {}: ranks hold different parts of a model, which an "
              "average over all ranks would mix; train with plain data parallelism",
              sizes.tp_size, sizes.pp_size, sizes.ep_size);
  check_argument(options.local_sgd_steps >= 1, "local_sgd_steps: expected 1 or more, got {}", options.local_sgd_steps);
}

void LocalSGD::step(std::source_location where) {
  ++num_steps_;
  if (enabled_ && num_steps_ % options_.local_sgd_steps == 0) synchronize_parameters(where);
}

void LocalSGD::finish(std::source_location where) {
  if (!std::exchange(enabled_, false)) return;
  synchronize_parameters(where);
  window_.reset();
}

// Replaces the tensors instead of writing into them, because an autograd graph may still hold the old values. The
// barrier and the separate reductions follow accelerate/local_sgd.py, _sync_and_avg_model_params.
void LocalSGD::synchronize_parameters(std::source_location where) {
  accelerator_->wait_for_everyone(where);
  for (auto& parameter : parameters_) parameter.set_data(accelerator_->reduce(parameter.detach(), "mean", 1.0, where));
}

}  // namespace accel
