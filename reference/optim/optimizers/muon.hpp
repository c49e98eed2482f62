#pragma once

#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"

/// Muon: momentum whose matrices are orthogonalized by Newton-Schulz iterations in bfloat16. For the matrices of hidden
/// layers; other parameters need a second optimizer.
///
///     accel::optim::Muon optimizer(matrices, {.lr = 1e-3, .adjust_lr_fn = "match_rms_adamw"});
///     accel::optim::AdamW others(vectors_and_embeddings);
///
/// Values are those of Python's `torch.optim.Muon`. Parameters that are not matrices are an ArgumentError. With
/// bfloat16 parameters and without `nesterov`, a step scales the momentum in the state, as in Python. Thread rule: the
/// rank's thread. Source: torch/optim/_muon.py.
namespace accel::optim {

inline constexpr Allowed<int> kNewtonSchulzSteps{[](const int& steps) { return steps < 100; },
                                                 "fewer than 100 iterations"};

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  NumberTriple ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;
  std::optional<std::string> adjust_lr_fn = {};  // original or match_rms_adamw; absent: original

  static constexpr auto kName = "Muon";
  static constexpr bool kOnlyOptionEntries = true;
  static constexpr auto kNotOnShards = "its Newton-Schulz iterations need complete matrices";
  static constexpr auto fields() {
    return std::tuple{OptionField{"lr", &MuonOptions::lr, kAtLeastZero},
                      OptionField{"weight_decay", &MuonOptions::weight_decay, kAtLeastZero},
                      OptionField{"momentum", &MuonOptions::momentum, kAtLeastZero},
                      OptionField{"nesterov", &MuonOptions::nesterov},
                      OptionField{"ns_coefficients", &MuonOptions::ns_coefficients},
                      OptionField{"eps", &MuonOptions::eps},
                      OptionField{"ns_steps", &MuonOptions::ns_steps, kNewtonSchulzSteps},
                      OptionField{"adjust_lr_fn", &MuonOptions::adjust_lr_fn}};
  }
  [[nodiscard]] std::vector<OptionProblem> problems_between() const;
  static std::string problem_of(const at::Tensor& param);
};

std::vector<StateEntry> state_entries(const MuonOptions& options);
void update(TensorLists& lists, const MuonOptions& options);

using Muon = MultiTensorOptimizer<MuonOptions>;
extern template class MultiTensorOptimizer<MuonOptions>;

}  // namespace accel::optim
