#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Adafactor: second moments of a matrix as the product of a row and a column, with steps relative to the size of the
/// parameter.
///
///     accel::optim::Adafactor optimizer(net->parameters(), {.lr = 1e-2, .weight_decay = 0.01});
///
/// Values are those of Python's `torch.optim.Adafactor`, which steps one tensor after another unless `foreach` is true,
/// because lists need more memory. Steps wait for the device: they depend on norms of each tensor. If `eps` has no
/// first number, it is the machine epsilon of the group's first parameter with a gradient, for all dtypes of the group,
/// as in Python. Thread rule: the rank's thread. Source: torch/optim/_adafactor.py.
namespace accel::optim {

inline constexpr Allowed<double> kAtMostZero{[](const double& value) { return value <= 0; }, "a number of 0 or less"};
inline constexpr Allowed<double> kAtLeastOne{[](const double& value) { return value >= 1; }, "a number of 1 or more"};
inline constexpr Allowed<OptionalNumberPair> kAdafactorEps{[](const OptionalNumberPair& eps) {
                                                             const auto& [first, second] = eps;
                                                             return first.value_or(0) >= 0 && second >= 0;
                                                           },
                                                           "none or a number of 0 or more, and a number of 0 or more"};

struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  OptionalNumberPair eps = {std::nullopt, 1e-3};
  double d = 1;
  double weight_decay = 0;
  std::optional<bool> foreach = {};
  bool maximize = false;

  static constexpr auto kName = "Adafactor";
  static constexpr bool kOnlyOptionEntries = true;
  static constexpr auto kNotOnShards = "its row and column statistics need complete matrices";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &AdafactorOptions::lr, kAtLeastZero},
                      OptionField{"beta2_decay", &AdafactorOptions::beta2_decay, kAtMostZero},
                      OptionField{"eps", &AdafactorOptions::eps, kAdafactorEps},
                      OptionField{"d", &AdafactorOptions::d, kAtLeastOne},
                      OptionField{"weight_decay", &AdafactorOptions::weight_decay, kAtLeastZero},
                      OptionField{"foreach", &AdafactorOptions::foreach},
                      OptionField{"maximize", &AdafactorOptions::maximize}};
  }
  static std::string problem_of(const at::Tensor& param);
};

std::vector<StateEntry> state_entries(const AdafactorOptions& options);
void update(TensorLists& lists, const AdafactorOptions& options);

using Adafactor = MultiTensorOptimizer<AdafactorOptions>;
extern template class MultiTensorOptimizer<AdafactorOptions>;

}  // namespace accel::optim
