#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// RAdam: Adam whose first steps are rectified for the variance of its second moment.
///
///     accel::optim::RAdam optimizer(net->parameters(), {.lr = 1e-3});
///
/// Values are those of Python's `torch.optim.RAdam(..., foreach=True)`, on CPU and CUDA.
/// Thread rule: the rank's thread. Source: torch/optim/radam.py, _multi_tensor_radam.
namespace accel::optim {

struct RAdamOptions {
  double lr = 1e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool maximize = false;

  static constexpr auto kName = "RAdam";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &RAdamOptions::lr, kAtLeastZero},
                      OptionField{"betas", &RAdamOptions::betas, kBetas},
                      OptionField{"eps", &RAdamOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &RAdamOptions::weight_decay, kAtLeastZero},
                      OptionField{"decoupled_weight_decay", &RAdamOptions::decoupled_weight_decay},
                      OptionField{"maximize", &RAdamOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const RAdamOptions& options);
void update(TensorLists& lists, const RAdamOptions& options);

using RAdam = MultiTensorOptimizer<RAdamOptions>;
extern template class MultiTensorOptimizer<RAdamOptions>;

}  // namespace accel::optim
