#pragma once

#include <torch/optim/sgd.h>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// SGD with LibTorch's fused kernel, on CPU and CUDA.
///
///     accel::optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
///
/// Values are those of Python's `torch.optim.SGD(..., fused=True)`, or of `foreach=True` with `fused = false` and for
/// bfloat16 and float16 on the CPU, for which LibTorch's fused kernel is wrong. Thread rule: the rank's thread. Source:
/// torch/optim/sgd.py, _fused_sgd and _multi_tensor_sgd.
namespace accel::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool fused = true;

  using LibTorch = torch::optim::SGDOptions;
  using LibTorchOptimizer = torch::optim::SGD;
  using LibTorchState = torch::optim::SGDParamState;
  static constexpr auto kName = "SGD";
  static constexpr bool kStepsOnDevice = true;
  static constexpr bool kNeverCapturable = true;
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &SGDOptions::lr, kAtLeastZero},
                      OptionField{"momentum", &SGDOptions::momentum, kAtLeastZero},
                      OptionField{"dampening", &SGDOptions::dampening},
                      OptionField{"weight_decay", &SGDOptions::weight_decay, kAtLeastZero},
                      OptionField{"nesterov", &SGDOptions::nesterov},
                      OptionField{"maximize", &SGDOptions::maximize}};
  }
  [[nodiscard]] std::vector<OptionProblem> problems_between() const;
  void assign(const LibTorch& from);
  void assign_to(LibTorch& to) const;
};

std::vector<StateEntry> state_entries(const SGDOptions& options);
void update(TensorLists& lists, const SGDOptions& options);

using SGD = MultiTensorOptimizer<SGDOptions>;
extern template class MultiTensorOptimizer<SGDOptions>;

}  // namespace accel::optim
