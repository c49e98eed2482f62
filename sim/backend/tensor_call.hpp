#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "reference/comm/collective_args.hpp"
#include "reference/comm/dtypes.hpp"
#include "sim/collectives/tensors/collectives.hpp"
#include "sim/engine/collective_call.hpp"

/// Describes the tensors of one rank's collective as a Call.
///
/// Thread rule: pure.
namespace accel::sim {

struct NamedReduction {
  std::string_view name;  // static storage
  ReduceKind kind;
};
/// Throws ArgumentError for a reduction that Gloo lacks.
NamedReduction reduction_of(const c10d::ReduceOp& op);

/// The name of the reduction; "" for a collective without one. Throws like reduction_of.
std::string_view reduction_name_of(const CollectiveArgs& args);
/// -1 for a collective without a root.
int root_of(const CollectiveArgs& args);

/// Returns views of the `count` equal parts of a tensor.
std::vector<at::Tensor> parts_of(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);

/// Returns the elements of a dense tensor as a vector in memory order.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// Describes one rank's call, at the program's current line. `inputs`: those of the arguments, a sparse one coalesced.
Call call_of(const CollectiveArgs& args, const std::vector<at::Tensor>& inputs);
/// The same for a collective of these tensors.
Call call_of(Collective op, const std::vector<at::Tensor>& tensors, std::string_view reduce_op = {}, int root = -1);

}  // namespace accel::sim
