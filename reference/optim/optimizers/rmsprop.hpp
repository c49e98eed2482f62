#pragma once

#include <torch/optim/rmsprop.h>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// RMSprop: divides gradients by a running root mean square, plain or centered, with or without momentum.
///
///     accel::optim::RMSprop optimizer(net->parameters(), {.lr = 0.01, .momentum = 0.9});
///
/// Values are those of Python's `torch.optim.RMSprop(..., foreach=True)`, on CPU and CUDA. Thread rule: the rank's
/// thread. Source: torch/optim/rmsprop.py, _multi_tensor_rmsprop.
namespace accel::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;

  using LibTorch = torch::optim::RMSpropOptions;
  using LibTorchOptimizer = torch::optim::RMSprop;
  using LibTorchState = torch::optim::RMSpropParamState;
  static constexpr auto kName = "RMSprop";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &RMSpropOptions::lr, kAtLeastZero},
                      OptionField{"alpha", &RMSpropOptions::alpha, kAtLeastZero},
                      OptionField{"eps", &RMSpropOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &RMSpropOptions::weight_decay, kAtLeastZero},
                      OptionField{"momentum", &RMSpropOptions::momentum, kAtLeastZero},
                      OptionField{"centered", &RMSpropOptions::centered},
                      OptionField{"maximize", &RMSpropOptions::maximize}};
  }
  void assign(const LibTorch& from);
  void assign_to(LibTorch& to) const;
};

std::vector<StateEntry> state_entries(const RMSpropOptions& options);
void update(TensorLists& lists, const RMSpropOptions& options);

using RMSprop = MultiTensorOptimizer<RMSpropOptions>;
extern template class MultiTensorOptimizer<RMSpropOptions>;

}  // namespace accel::optim
