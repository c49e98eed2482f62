#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "reference/core/value.hpp"

/// The state of an optimizer with the structure of Python's `optimizer.state_dict()`.
///
///     accel::Value saved = accel::optim::state_dict(sgd);
///     accel::optim::load_state_dict(sgd, saved);
///
/// `{"state": {"0": {"step": tensor, "exp_avg": tensor, ...}}, "param_groups": [{"lr": 0.001, ..., "params": [0,
/// 1]}]}`: keys of `state` are decimal numbers, tensors are the optimizer's own (a later step changes them), as
/// Python's are. For this library's optimizers, and LibTorch's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS, whose
/// `step` becomes a tensor and whose groups hold nothing beside LibTorch's options. Thread rule: the rank's thread.
/// Source: torch/optim/optimizer.py.
namespace accel::optim {

/// Of all groups, in the order in which `state` numbers them.
[[nodiscard]] std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Throws ArgumentError for an optimizer of another class.
[[nodiscard]] Value state_dict(const torch::optim::Optimizer& optimizer);

/// Copies tensors to the dtype and device where they belong, as Python does. Throws CheckpointError with all that does
/// not fit (numbers and sizes of groups, options, shapes), and then has loaded nothing.
void load_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict);

/// Moves the state of parameters that have moved to another device there. One of another class keeps its state as it
/// is.
void follow_parameters(torch::optim::Optimizer& optimizer);

}  // namespace accel::optim
