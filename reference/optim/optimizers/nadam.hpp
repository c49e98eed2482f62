#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// NAdam: Adam with Nesterov's momentum.
///
///     accel::optim::NAdam optimizer(net->parameters(), {.lr = 2e-3, .decoupled_weight_decay = true});
///
/// Values are those of Python's `torch.optim.NAdam(..., foreach=True)`, on CPU and CUDA.
/// Thread rule: the rank's thread. Source: torch/optim/nadam.py, _multi_tensor_nadam.
namespace accel::optim {

struct NAdamOptions {
  double lr = 2e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
  bool maximize = false;

  static constexpr auto kName = "NAdam";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &NAdamOptions::lr, kAtLeastZero},
                      OptionField{"betas", &NAdamOptions::betas, kBetas},
                      OptionField{"eps", &NAdamOptions::eps, kAtLeastZero},
                      OptionField{"weight_decay", &NAdamOptions::weight_decay, kAtLeastZero},
                      OptionField{"momentum_decay", &NAdamOptions::momentum_decay, kAtLeastZero},
                      OptionField{"decoupled_weight_decay", &NAdamOptions::decoupled_weight_decay},
                      OptionField{"maximize", &NAdamOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const NAdamOptions& options);
void update(TensorLists& lists, const NAdamOptions& options);

using NAdam = MultiTensorOptimizer<NAdamOptions>;
extern template class MultiTensorOptimizer<NAdamOptions>;

}  // namespace accel::optim
