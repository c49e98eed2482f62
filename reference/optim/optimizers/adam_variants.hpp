#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Variants of Adam.
namespace accel::optim {

// Adamax: Adam with the maximum of decayed gradients instead of the second moment.
//
//     accel::optim::Adamax optimizer(net->parameters(), {.lr = 2e-3});
//
// Values are those of Python's `torch.optim.Adamax(..., foreach=True)`, on CPU and CUDA.
// Thread rule: the rank's thread. Source: torch/optim/adamax.py, _multi_tensor_adamax.

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

// NAdam: Adam with Nesterov's momentum.
//
//     accel::optim::NAdam optimizer(net->parameters(), {.lr = 2e-3, .decoupled_weight_decay = true});
//
// Values are those of Python's `torch.optim.NAdam(..., foreach=True)`, on CPU and CUDA.
// Thread rule: the rank's thread. Source: torch/optim/nadam.py, _multi_tensor_nadam.

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

// RAdam: Adam whose first steps are rectified for the variance of its second moment.
//
//     accel::optim::RAdam optimizer(net->parameters(), {.lr = 1e-3});
//
// Values are those of Python's `torch.optim.RAdam(..., foreach=True)`, on CPU and CUDA.
// Thread rule: the rank's thread. Source: torch/optim/radam.py, _multi_tensor_radam.

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
