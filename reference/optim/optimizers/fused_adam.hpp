#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Adam and AdamW with LibTorch's fused kernels, on CPU and CUDA.
///
///     accel::optim::AdamW optimizer(net->parameters(), {.lr = 1e-3, .weight_decay = 0.1});
///     accel::optim::AdamW same(net->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
///
/// Values are those of Python's `torch.optim.Adam(..., fused=True)` and `AdamW(..., fused=True)`, or of `foreach=True`
/// with `fused = false`. Thread rule: the rank's thread. Source: torch/optim/adam.py, _fused_adam and
/// _multi_tensor_adam.
namespace accel::optim {

struct AdamOptions {
  double lr = 1e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool decoupled_weight_decay = false;
  bool fused = true;

  using LibTorch = torch::optim::AdamOptions;
  using LibTorchOptimizer = torch::optim::Adam;
  using LibTorchState = torch::optim::AdamParamState;
  static constexpr auto kName = "Adam";
  static constexpr bool kStepsOnDevice = true;
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &AdamOptions::lr, kAtLeastZero},
                      OptionField{"betas", &AdamOptions::betas, kBetas},
                      OptionField{"eps", &AdamOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &AdamOptions::weight_decay, kAtLeastZero},
                      OptionField{"amsgrad", &AdamOptions::amsgrad},
                      OptionField{"maximize", &AdamOptions::maximize},
                      OptionField{"decoupled_weight_decay", &AdamOptions::decoupled_weight_decay}};
  }
  void assign(const LibTorch& from);
  void assign_to(LibTorch& to) const;
};

struct AdamWOptions {
  double lr = 1e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  bool fused = true;

  using LibTorch = torch::optim::AdamWOptions;
  using LibTorchOptimizer = torch::optim::AdamW;
  using LibTorchState = torch::optim::AdamWParamState;
  static constexpr auto kName = "AdamW";
  static constexpr bool kStepsOnDevice = true;
  static constexpr bool kAlwaysDecoupled = true;
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &AdamWOptions::lr, kAtLeastZero},
                      OptionField{"betas", &AdamWOptions::betas, kBetas},
                      OptionField{"eps", &AdamWOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &AdamWOptions::weight_decay, kAtLeastZero},
                      OptionField{"amsgrad", &AdamWOptions::amsgrad},
                      OptionField{"maximize", &AdamWOptions::maximize}};
  }
  void assign(const LibTorch& from);
  void assign_to(LibTorch& to) const;
};

std::vector<StateEntry> state_entries(const AdamOptions& options);
std::vector<StateEntry> state_entries(const AdamWOptions& options);
void update(TensorLists& lists, const AdamOptions& options);
void update(TensorLists& lists, const AdamWOptions& options);

using Adam = MultiTensorOptimizer<AdamOptions>;
using AdamW = MultiTensorOptimizer<AdamWOptions>;
extern template class MultiTensorOptimizer<AdamOptions>;
extern template class MultiTensorOptimizer<AdamWOptions>;

}  // namespace accel::optim
