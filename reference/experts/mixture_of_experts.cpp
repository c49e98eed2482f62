#include "reference/experts/mixture_of_experts.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/experts/token_dispatcher.hpp"
#include "reference/modules/call.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::parallel {
namespace {

MixtureOfExpertsOptions checked(const MixtureOfExpertsOptions& options, int ep_size) {
  std::vector<std::string> problems;
  note_unless(options.width >= 1, problems, "width: expected 1 or more, got {}", options.width);
  note_unless(options.inner >= 1, problems, "inner: expected 1 or more, got {}", options.inner);
  note_unless(options.num_experts >= 1, problems, "num_experts: expected 1 or more, got {}", options.num_experts);
  note_unless(options.num_experts % ep_size == 0, problems,
              "num_experts: {} do not divide over {} ranks; expected a multiple of ep_size", options.num_experts,
              ep_size);
  note_unless(options.top_k >= 1 && options.top_k <= std::max<std::int64_t>(options.num_experts, 1), problems,
              "top_k: expected 1 to num_experts, got {}", options.top_k);
  note_unless(options.capacity_factor.value_or(1) > 0, problems, "capacity_factor: expected more than 0, got {}",
              options.capacity_factor.value_or(1));
  note_unless(
      !options.normalize_gates || options.top_k != 1, problems,
      "normalize_gates: with top_k 1 every gate would be 1 and the router would get no gradient; set it to false");
  note_unless(options.aux_loss_weight >= 0, problems, "aux_loss_weight: expected 0 or more, got {}",
              options.aux_loss_weight);
  note_unless(options.z_loss_weight >= 0, problems, "z_loss_weight: expected 0 or more, got {}", options.z_loss_weight);
  check_config(problems.empty(), "MixtureOfExperts: {}", listed(problems, "; "));
  return options;
}

}  // namespace

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options, const DeviceMesh& mesh)
    : options_(checked(options, mesh["ep"].size())),
      experts_group_(mesh["ep"]),
      data_group_(mesh["dp_cp"]),
      tensor_group_(mesh["tp"]) {
  router_ = register_module("router",
                            models::Linear(torch::nn::LinearOptions(options.width, options.num_experts).bias(false)));
  experts_ = register_module("experts", Experts(ExpertsOptions{.width = options.width,
                                                               .inner = options.inner,
                                                               .num_experts = options.num_experts,
                                                               .activation = options.activation,
                                                               .bias = options.bias},
                                                experts_group_));
}

MixtureOutputOf<Replicated> MixtureOfExpertsImpl::forward(const Replicated& values) {
  auto output = mixed(values.local);
  return {.values = {output.values}, .auxiliary_loss = output.auxiliary_loss};
}

MixtureOutputOf<Sharded<1>> MixtureOfExpertsImpl::forward(const Sharded<1>& values) {
  const auto output = forward(gather(values, tensor_group_));
  return {.values = scatter<1>(output.values, tensor_group_), .auxiliary_loss = output.auxiliary_loss};
}

MixtureOutput MixtureOfExpertsImpl::forward(const at::Tensor& values) {
  check_argument(tensor_group_.size() == 1,
                 "MixtureOfExperts: got a tensor on {} tensor-parallel ranks; pass Replicated{{values}} if every rank "
                 "has all tokens, or Sharded<1>{{values}} if each has a part of the sequence",
                 tensor_group_.size());
  return mixed(values);
}

MixtureOutput MixtureOfExpertsImpl::mixed(const at::Tensor& values) {
  check_argument(values.dim() >= 1 && values.size(-1) == options_.width,
                 "MixtureOfExperts: got values of sizes {}; expected (..., {})", c10::str(values.sizes()),
                 options_.width);
  const auto tokens = values.reshape({values.numel() / options_.width, options_.width});
  const auto logits = call(router_, tokens);
  const auto routing = route(logits, {.top_k = options_.top_k, .normalize_gates = options_.normalize_gates});
  const DispatchOptions dispatch{
      .num_experts = options_.num_experts, .top_k = options_.top_k, .capacity_factor = options_.capacity_factor};
  const TokenDispatcher dispatcher(routing.choices, dispatch, experts_group_);
  const auto results = call(experts_, Routed{dispatcher.dispatch(tokens)}, dispatcher.rows_per_expert()).local;
  return {.values = dispatcher.combine(results, routing.gates).view(values.sizes()),
          .auxiliary_loss = weighted_losses(logits, routing)};
}

at::Tensor MixtureOfExpertsImpl::weighted_losses(const at::Tensor& logits, const Routing& routing) const {
  const bool has_weight = options_.aux_loss_weight != 0 || options_.z_loss_weight != 0;
  // Without the collective, a rank can evaluate complete experts alone, for example to generate text.
  if (!is_training() || !has_weight) return at::zeros({}, routing.probabilities.options());
  const auto losses = routing_losses(logits, routing, data_group_);
  return losses.balance * options_.aux_loss_weight + losses.z * options_.z_loss_weight;
}

}  // namespace accel::parallel
