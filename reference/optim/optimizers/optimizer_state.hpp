#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "reference/tree/value.hpp"

/// State dicts of any optimizer: this library's, or LibTorch's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS.
///
///     accel::Value saved = accel::optim::state_dict(sgd);
///     accel::optim::load_state_dict(sgd, saved);
///
/// A state dict has the structure of Python's `optimizer.state_dict()`: `{"state": {"0": {"step": tensor, "exp_avg":
/// tensor, ...}}, "param_groups": [{"lr": 0.001, ..., "params": [0, 1]}]}`. Keys of `state` are decimal numbers.
/// Tensors are the optimizer's own, as in Python, so a later step changes them. The `step` of LibTorch's optimizers
/// becomes a tensor, and their groups contain LibTorch's options only. Thread rule: the rank's thread. Source:
/// torch/optim/optimizer.py.
namespace accel::optim {

/// The parameters of all groups, in the order in which `state` numbers them.
[[nodiscard]] std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Throws ArgumentError for an optimizer of an unsupported class.
[[nodiscard]] Value state_dict(const torch::optim::Optimizer& optimizer);

/// The tensors of the state, in the order of its state dict; none for an optimizer of an unsupported class.
[[nodiscard]] std::vector<at::Tensor> state_tensors(const torch::optim::Optimizer& optimizer);

/// Copies tensors to the dtype and device of the parameters, as Python does. Throws CheckpointError, which lists all
/// mismatches (numbers and sizes of groups, options, shapes), and leaves the optimizer unchanged then.
void load_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict);

/// Moves the state of parameters that were moved to another device. An optimizer of an unsupported class keeps its
/// state unchanged.
void move_state_to_parameters(torch::optim::Optimizer& optimizer);

/// Whether the optimizer holds state from a step. The state that Adagrad, including LibTorch's, creates in its
/// constructor does not count.
[[nodiscard]] bool has_stepped(const torch::optim::Optimizer& optimizer);

/// Why the optimizer cannot step shards of parameters, as in "LBFGS does not support sharded models, because ...";
/// empty if it can.
[[nodiscard]] std::string sharding_problem(const torch::optim::Optimizer& optimizer);

/// Recreates the constructor's state, for parameters whose shapes have changed before the first step. Source:
/// torch/optim/adagrad.py, __init__.
void restart(torch::optim::Optimizer& optimizer);

}  // namespace accel::optim
