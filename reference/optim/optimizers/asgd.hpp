#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// ASGD: SGD that also keeps the average of the parameters, in its state as `ax`.
///
///     accel::optim::ASGD optimizer(net->parameters(), {.lr = 0.01, .t0 = 1000});
///
/// Values are those of Python's `torch.optim.ASGD(..., foreach=True)`, on CPU and CUDA.
/// Thread rule: the rank's thread. Source: torch/optim/asgd.py, _multi_tensor_asgd.
namespace accel::optim {

struct ASGDOptions {
  double lr = 1e-2;
  double lambd = 1e-4;
  double alpha = 0.75;
  double t0 = 1e6;
  double weight_decay = 0;
  bool maximize = false;

  static constexpr auto kName = "ASGD";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &ASGDOptions::lr, kAtLeastZero},
                      OptionField{"lambd", &ASGDOptions::lambd},
                      OptionField{"alpha", &ASGDOptions::alpha},
                      OptionField{"t0", &ASGDOptions::t0},
                      OptionField{"weight_decay", &ASGDOptions::weight_decay, kAtLeastZero},
                      OptionField{"maximize", &ASGDOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const ASGDOptions& options);
void update(TensorLists& lists, const ASGDOptions& options);

using ASGD = MultiTensorOptimizer<ASGDOptions>;
extern template class MultiTensorOptimizer<ASGDOptions>;

}  // namespace accel::optim
