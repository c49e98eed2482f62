#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "sim/collectives/tensors/collectives.hpp"
#include "sim/engine/collective_call.hpp"

/// What a collective requires of its tensors, and how a Call describes them. The checks throw ArgumentError, whose
/// message begins with the collective's name.
///
/// Thread rule: pure.
namespace accel::sim {

struct NamedReduction {
  std::string_view name;  // static storage
  ReduceKind kind;
};
/// Throws ArgumentError for what Gloo lacks.
NamedReduction reduction_of(const c10d::ReduceOp& op);

/// E.g. "float32".
std::string_view dtype_name(at::ScalarType dtype);

void check_one(Collective op, const std::vector<at::Tensor>& tensors);
/// `what` names the tensors: "inputs" in "scatter inputs: got 3 tensors; ...".
void check_count(Collective op, std::string_view what, std::size_t given, std::size_t expected);
void check_same(Collective op, const at::Tensor& tensor, const at::Tensor& like);
void check_root(Collective op, int root, int num_ranks);
/// That a tensor is contiguous and holds as much as `count` parts.
void check_parts(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);

/// The `count` parts of a tensor whose elements, or first dimension, are cut evenly.
std::vector<at::Tensor> parts_of(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);

/// The elements of a dense tensor as a vector in the order of memory.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// The call of one rank with these tensors, at the program's current line.
Call call_of(Collective op, const std::vector<at::Tensor>& tensors, std::string_view reduce_op = {}, int root = -1);

}  // namespace accel::sim
