#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "reference/comm/dtypes.hpp"
#include "sim/collectives/tensors/collectives.hpp"
#include "sim/engine/collective_call.hpp"

/// Checks the tensors of a collective and describes them as a Call. The checks throw ArgumentError with a message that
/// begins with the collective's name.
///
/// Thread rule: pure.
namespace accel::sim {

struct NamedReduction {
  std::string_view name;  // static storage
  ReduceKind kind;
};
/// Throws ArgumentError for a reduction that Gloo lacks.
NamedReduction reduction_of(const c10d::ReduceOp& op);

void check_one(Collective op, const std::vector<at::Tensor>& tensors);
/// `what` names the tensors: "inputs" in "scatter inputs: got 3 tensors; ...".
void check_count(Collective op, std::string_view what, std::size_t given, std::size_t expected);
void check_same(Collective op, const at::Tensor& tensor, const at::Tensor& like);
void check_root(Collective op, int root, int num_ranks);
/// Checks that a tensor is contiguous and has the elements of `count` parts.
void check_parts(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);

/// Returns views of the `count` equal parts of a tensor.
std::vector<at::Tensor> parts_of(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);

/// Returns the elements of a dense tensor as a vector in memory order.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// Describes one rank's call with these tensors, at the program's current line.
Call call_of(Collective op, const std::vector<at::Tensor>& tensors, std::string_view reduce_op = {}, int root = -1);

}  // namespace accel::sim
