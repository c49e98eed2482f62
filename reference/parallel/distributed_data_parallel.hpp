#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"

namespace accel {

/// Named parameters (those that require gradients) and buffers of a module, in the module's order.
struct ModelTensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<at::Tensor> buffers;
};

/// Averages gradients over the ranks while backward computes them, with c10d's own Reducer and the very calls of
/// Python's DistributedDataParallel, in its order: other calls give other buckets, and other bits.
///
/// Construction is collective: shapes are compared, then parameters and buffers of rank 0 are copied to all.
/// Throws CommError if the ranks' parameters differ in number or shape.
/// Thread rule: the rank's thread. Source: torch/nn/parallel/distributed.py.
class DistributedDataParallel {
 public:
  DistributedDataParallel(ModelTensors tensors, Group group, const DistributedDataParallelKwargs& kwargs);
  ~DistributedDataParallel();

  void before_forward();
  /// `outputs` are searched for unused parameters if the options ask for it.
  void after_forward(const std::vector<at::Tensor>& outputs);

  /// While false, backward keeps gradients local and communicates nothing.
  bool require_backward_grad_sync = true;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accel
