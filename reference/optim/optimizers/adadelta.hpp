#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Adadelta: step sizes from running averages of squared gradients and of squared steps.
///
///     accel::optim::Adadelta optimizer(net->parameters(), {.lr = 1.0, .rho = 0.95});
///
/// Values are those of Python's `torch.optim.Adadelta(..., foreach=True)`, on CPU and CUDA.
/// Thread rule: the rank's thread. Source: torch/optim/adadelta.py, _multi_tensor_adadelta.
namespace accel::optim {

struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;

  static constexpr auto kName = "Adadelta";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &AdadeltaOptions::lr, kAtLeastZero},
                      OptionField{"rho", &AdadeltaOptions::rho, kZeroToOne},
                      OptionField{"eps", &AdadeltaOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &AdadeltaOptions::weight_decay, kAtLeastZero},
                      OptionField{"maximize", &AdadeltaOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const AdadeltaOptions& options);
void update(TensorLists& lists, const AdadeltaOptions& options);

using Adadelta = MultiTensorOptimizer<AdadeltaOptions>;
extern template class MultiTensorOptimizer<AdadeltaOptions>;

}  // namespace accel::optim
