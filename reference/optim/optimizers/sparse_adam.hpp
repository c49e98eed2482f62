#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// SparseAdam: Adam for sparse gradients, such as those of an embedding with `sparse(true)`. Only the rows in a
/// gradient and their moments change.
///
///     accel::optim::SparseAdam optimizer(embedding->parameters(), {.lr = 1e-3});
///
/// Values are those of Python's `torch.optim.SparseAdam`. Dense gradients are an ArgumentError. Thread rule: the rank's
/// thread. Source: torch/optim/sparse_adam.py and _functional.py.
namespace accel::optim {

struct SparseAdamOptions {
  double lr = 1e-3;
  NumberPair betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;

  static constexpr auto kName = "SparseAdam";
  static constexpr bool kOnlyOptionEntries = true;
  static constexpr bool kSparseGradients = true;
  static constexpr auto kNotOnShards = "gradients of shards are dense";
  static constexpr auto fields() {
    return std::tuple{
        OptionField{"lr", &SparseAdamOptions::lr, kAboveZero}, OptionField{"betas", &SparseAdamOptions::betas, kBetas},
        OptionField{"eps", &SparseAdamOptions::eps, kAboveZero}, OptionField{"maximize", &SparseAdamOptions::maximize}};
  }
  static std::string problem_of(const at::Tensor& param);
};

std::vector<StateEntry> state_entries(const SparseAdamOptions& options);
void update(TensorLists& lists, const SparseAdamOptions& options);

using SparseAdam = MultiTensorOptimizer<SparseAdamOptions>;
extern template class MultiTensorOptimizer<SparseAdamOptions>;

}  // namespace accel::optim
