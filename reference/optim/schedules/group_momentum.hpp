#pragma once

#include <torch/optim/optimizer.h>

#include <optional>

/// The momentum of a parameter group: what schedules cycle against the rate. It is `momentum` of SGD and RMSprop, and
/// the first of the `betas` of Adam and its kin; of LibTorch's optimizers and of ours.
///
/// Thread rule: the rank's thread. Source: torch/optim/lr_scheduler.py, OneCycleLR and CyclicLR.
namespace accel::detail {

enum class MomentumKind { kMomentum, kBeta1 };

/// Nothing, if the optimizer has neither.
std::optional<MomentumKind> momentum_kind(const torch::optim::OptimizerOptions& options);
/// Of options that have one.
double momentum_of(const torch::optim::OptimizerOptions& options);
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);

}  // namespace accel::detail
