#pragma once

#include <torch/optim/adagrad.h>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Adagrad with LibTorch's fused kernel on the CPU; on CUDA, which has no such kernel, in the multi-tensor form.
///
///     accel::optim::Adagrad optimizer(net->parameters(), {.lr = 0.01, .lr_decay = 1e-4});
///
/// Values are those of Python's `torch.optim.Adagrad(..., fused=True)` on the CPU, and of `foreach=True` on CUDA or
/// with `fused = false`. Thread rule: the rank's thread. Source: torch/optim/adagrad.py, _fused_adagrad and
/// _multi_tensor_adagrad.
namespace accel::optim {

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool fused = true;

  using LibTorch = torch::optim::AdagradOptions;
  using LibTorchOptimizer = torch::optim::Adagrad;
  using LibTorchState = torch::optim::AdagradParamState;
  static constexpr auto kName = "Adagrad";
  static constexpr bool kNeverCapturable = true;
  static constexpr bool kStateFromStart = true;  // state is created in the constructor, before the first gradient
  static constexpr auto fields() {
    return std::tuple{
        OptionField{"lr", &AdagradOptions::lr, kAtLeastZero},
        OptionField{"lr_decay", &AdagradOptions::lr_decay, kAtLeastZero},
        OptionField{"weight_decay", &AdagradOptions::weight_decay, kAtLeastZero},
        OptionField{"initial_accumulator_value", &AdagradOptions::initial_accumulator_value, kAtLeastZero},
        OptionField{"eps", &AdagradOptions::eps, kAtLeastZero},
        OptionField{"maximize", &AdagradOptions::maximize}};
  }
  void assign(const LibTorch& from);
  void assign_to(LibTorch& to) const;
};

std::vector<StateEntry> state_entries(const AdagradOptions& options);
void update(TensorLists& lists, const AdagradOptions& options);

using Adagrad = MultiTensorOptimizer<AdagradOptions>;
extern template class MultiTensorOptimizer<AdagradOptions>;

}  // namespace accel::optim
