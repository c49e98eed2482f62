#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "reference/core/value.hpp"

/// The state of any optimizer: this library's, or LibTorch's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS.
///
///     accel::Value saved = accel::optim::state_dict(sgd);
///     accel::optim::load_state_dict(sgd, saved);
///
/// A state dict has the structure of Python's `optimizer.state_dict()`:
/// `{"state": {"0": {"step": tensor, "exp_avg": tensor, ...}}, "param_groups": [{"lr": 0.001, ..., "params": [0,
/// 1]}]}`. Keys of `state` are decimal numbers; tensors are the optimizer's own (a later step changes them), as
/// Python's are. The `step` of LibTorch's optimizers becomes a tensor, and their groups hold nothing beside LibTorch's
/// options. Thread rule: the rank's thread. Source: torch/optim/optimizer.py.
namespace accel::optim {

/// Of all groups, in the order in which `state` numbers them.
[[nodiscard]] std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Throws ArgumentError for an optimizer of another class.
[[nodiscard]] Value state_dict(const torch::optim::Optimizer& optimizer);

/// Copies tensors to the dtype and device where they belong, as Python does. Throws CheckpointError with all that does
/// not fit (numbers and sizes of groups, options, shapes), and then has loaded nothing.
void load_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict);

/// Moves the state of parameters that have moved to another device there. An optimizer of another class keeps its
/// state unchanged.
void follow_parameters(torch::optim::Optimizer& optimizer);

/// Whether the optimizer holds state of a step. The state that Adagrad, LibTorch's too, makes in its constructor is
/// none.
[[nodiscard]] bool has_stepped(const torch::optim::Optimizer& optimizer);

/// Makes the state of the constructor again, for parameters that have got other shapes before the first step. Source:
/// torch/optim/adagrad.py, __init__.
void restart(torch::optim::Optimizer& optimizer);

}  // namespace accel::optim
