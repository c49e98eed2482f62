#pragma once

#include <limits>

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Rprop: a step size per element, adapted from the signs of its gradients; for full batches.
///
///     accel::optim::Rprop optimizer(net->parameters(), {.lr = 0.01});
///
/// Values are those of Python's `torch.optim.Rprop(..., foreach=True)`, on CPU and CUDA, except if the smaller of
/// `etas` rounds to 0 or 1 in the parameters' dtype: Python's masks then confuse factors with signs. Thread rule: the
/// rank's thread. Source: torch/optim/rprop.py, _multi_tensor_rprop.
namespace accel::optim {

inline constexpr Allowed<NumberPair> kEtas{[](const NumberPair& etas) {
                                             const auto [smaller, larger] = etas;
                                             return 0 < smaller && smaller < 1 && 1 < larger &&
                                                    larger <= std::numeric_limits<double>::max();
                                           },
                                           "a number in (0, 1) and a finite one over 1"};

struct RpropOptions {
  double lr = 1e-2;
  NumberPair etas = {0.5, 1.2};
  NumberPair step_sizes = {1e-6, 50};
  bool maximize = false;

  static constexpr auto kName = "Rprop";
  static constexpr auto fields() {
    return std::tuple{
        OptionField{"lr", &RpropOptions::lr, kAtLeastZero}, OptionField{"etas", &RpropOptions::etas, kEtas},
        OptionField{"step_sizes", &RpropOptions::step_sizes}, OptionField{"maximize", &RpropOptions::maximize}};
  }
};

std::vector<StateEntry> state_entries(const RpropOptions& options);
void update(TensorLists& lists, const RpropOptions& options);

using Rprop = MultiTensorOptimizer<RpropOptions>;
extern template class MultiTensorOptimizer<RpropOptions>;

}  // namespace accel::optim
