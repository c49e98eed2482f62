#include "reference/optim/fused_adam.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <tuple>

#include "reference/core/errors.hpp"

namespace accel::optim {
namespace {

template <typename Options>
void check_numbers(const Options& options) {
  const auto [beta1, beta2] = options.betas();
  check_argument(std::isfinite(options.lr()) && options.lr() >= 0 && options.eps() >= 0 && options.weight_decay() >= 0 &&
                     beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
                 "Adam: lr {}, betas ({}, {}), eps {}, weight_decay {}; expected lr, eps, weight_decay >= 0 and 0 <= betas < 1",
                 options.lr(), beta1, beta2, options.eps(), options.weight_decay());
}

template <typename Options>
detail::AdamNumbers numbers_of(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const Options&>(group.options());
  const auto [beta1, beta2] = options.betas();
  return {options.lr(), beta1, beta2, options.eps(), options.weight_decay(), options.amsgrad()};
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const c10::AutoGradMode grad_on(true);
  return closure();
}

}  // namespace

void detail::FusedAdamStep::operator()(std::vector<at::Tensor>& params, const AdamNumbers& numbers, bool decoupled) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
  for (auto& param : params) {
    if (!param.grad().defined()) continue;
    check_argument(!param.grad().is_sparse(), "fused Adam does not take sparse gradients; use torch::optim::SGD");
    auto& state = states_[param.unsafeGetTensorImpl()];
    if (!state.step.defined()) {
      state.step = at::zeros({}, at::TensorOptions(param.device()).dtype(at::kFloat));
      state.exp_avg = at::zeros_like(param, at::MemoryFormat::Preserve);
      state.exp_avg_sq = at::zeros_like(param, at::MemoryFormat::Preserve);
      if (numbers.amsgrad) state.max_exp_avg_sq = at::zeros_like(param, at::MemoryFormat::Preserve);
    }
    with_grad.push_back(param);
    grads.push_back(param.grad());
    exp_avgs.push_back(state.exp_avg);
    exp_avg_sqs.push_back(state.exp_avg_sq);
    if (numbers.amsgrad) max_exp_avg_sqs.push_back(state.max_exp_avg_sq);
    steps.push_back(state.step);
  }
  if (with_grad.empty()) return;
  at::_foreach_add_(steps, 1);
  if (decoupled) {
    at::_fused_adamw_(with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, numbers.lr, numbers.beta1,
                      numbers.beta2, numbers.weight_decay, numbers.eps, numbers.amsgrad, /*maximize=*/false);
  } else {
    at::_fused_adam_(with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, numbers.lr, numbers.beta1,
                     numbers.beta2, numbers.weight_decay, numbers.eps, numbers.amsgrad, /*maximize=*/false);
  }
}

Adam::Adam(std::vector<at::Tensor> params, torch::optim::AdamOptions defaults)
    : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<torch::optim::AdamOptions>(defaults)) {
  check_numbers(defaults);
}

at::Tensor Adam::step(LossClosure closure) {
  auto loss = loss_of(closure);
  for (auto& group : param_groups_) fused_step_(group.params(), numbers_of<torch::optim::AdamOptions>(group), /*decoupled=*/false);
  return loss;
}

AdamW::AdamW(std::vector<at::Tensor> params, torch::optim::AdamWOptions defaults)
    : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<torch::optim::AdamWOptions>(defaults)) {
  check_numbers(defaults);
}

at::Tensor AdamW::step(LossClosure closure) {
  auto loss = loss_of(closure);
  for (auto& group : param_groups_) fused_step_(group.params(), numbers_of<torch::optim::AdamWOptions>(group), /*decoupled=*/true);
  return loss;
}

}  // namespace accel::optim
