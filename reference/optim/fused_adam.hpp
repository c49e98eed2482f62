#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_map>
#include <vector>

/// Adam and AdamW over LibTorch's fused kernels, on CPU and CUDA: one call for all parameters of a group.
///
///     accel::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
///
/// Values are those of Python's `torch.optim.Adam(..., fused=True)` and `AdamW(..., fused=True)`.
/// Thread rule: the rank's thread. Source: torch/optim/adam.py, _fused_adam.
namespace accel::optim {

namespace detail {

/// First and second moments and the number of steps of one parameter.
struct AdamState {
  at::Tensor step, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

/// The plain numbers of one parameter group.
struct AdamNumbers {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
};

class FusedAdamStep {
 public:
  /// Steps every parameter that has a gradient; `decoupled` weight decay is AdamW's.
  void operator()(std::vector<at::Tensor>& params, const AdamNumbers& numbers, bool decoupled);

 private:
  std::unordered_map<const void*, AdamState> states_;  // by parameter
};

}  // namespace detail

class Adam : public torch::optim::Optimizer {
 public:
  explicit Adam(std::vector<at::Tensor> params, torch::optim::AdamOptions defaults = {});
  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  detail::FusedAdamStep fused_step_;
};

class AdamW : public torch::optim::Optimizer {
 public:
  explicit AdamW(std::vector<at::Tensor> params, torch::optim::AdamWOptions defaults = {});
  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  detail::FusedAdamStep fused_step_;
};

}  // namespace accel::optim
