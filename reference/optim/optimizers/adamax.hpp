#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Adamax: Adam with the largest gradient in place of the second moment.
///
///     accel::optim::Adamax optimizer(net->parameters(), {.lr = 2e-3});
///
/// Values are those of Python's `torch.optim.Adamax(..., foreach=True)`, on CPU and CUDA.
/// Thread rule: the rank's thread. Source: torch/optim/adamax.py, _multi_tensor_adamax.
namespace accel::optim {

struct AdamaxOptions {
  double lr = 2e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;

  static constexpr auto kName = "Adamax";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &AdamaxOptions::lr, kAtLeastZero},
                      OptionField{"betas", &AdamaxOptions::betas, kBetas},
                      OptionField{"eps", &AdamaxOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &AdamaxOptions::weight_decay, kAtLeastZero},
                      OptionField{"maximize", &AdamaxOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const AdamaxOptions& options);
void update(TensorLists& lists, const AdamaxOptions& options);

using Adamax = MultiTensorOptimizer<AdamaxOptions>;
extern template class MultiTensorOptimizer<AdamaxOptions>;

}  // namespace accel::optim
