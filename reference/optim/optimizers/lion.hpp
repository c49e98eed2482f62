#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Lion: steps of equal size in the direction of the sign of an interpolated momentum.
///
///     accel::optim::Lion optimizer(net->parameters(), {.lr = 1e-4, .weight_decay = 0.1});
///
/// torch has no Lion. Options, values and state dict are those of the authors' PyTorch version, in the multi-tensor
/// form. Thread rule: the rank's thread. Source: "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675;
/// google/automl, lion/lion_pytorch.py.
namespace accel::optim {

struct LionOptions {
  double lr = 1e-4;
  NumberPair betas = {0.9, 0.99};
  double weight_decay = 0;

  static constexpr auto kName = "Lion";
  static constexpr bool kOnlyOptionEntries = true;
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &LionOptions::lr, kAtLeastZero},
                      OptionField{"betas", &LionOptions::betas, kBetas},
                      OptionField{"weight_decay", &LionOptions::weight_decay, kAtLeastZero}};
  }
};

std::vector<StateEntry> state_entries(const LionOptions& options);
void update(TensorLists& lists, const LionOptions& options);

using Lion = MultiTensorOptimizer<LionOptions>;
extern template class MultiTensorOptimizer<LionOptions>;

}  // namespace accel::optim
