#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"

/// PowerSGD: of a matrix of gradients M, only P and Q with M = P Q^T are sent, a few columns each; what that loses may
/// be added to the next step's gradients (error feedback).
///
/// Thread rule: the rank's thread; reduce() waits for collectives. See Note [PowerSGD waits].
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
namespace accel {

class CommHook;

/// One P and Q for each parameter; parameters that would hardly shrink are sent as they are.
std::unique_ptr<CommHook> make_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// One P and Q for a whole bucket, seen as a square. torch 2.11's own raises AssertionError in its first step.
std::unique_ptr<CommHook> make_batched_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// Makes the columns of each matrix orthonormal, in place: by QR, or by Gram-Schmidt for at most two columns and for
/// half precision. `epsilon` is added to norms in Gram-Schmidt, for columns of zeros.
///
/// Shape: (n, m) or (batch, n, m) with m <= n. Thread rule: a plain function on values.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, _orthogonalize.
void orthogonalize(at::Tensor matrices, double epsilon = 0);

}  // namespace accel
