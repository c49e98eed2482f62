#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/diagnosis/collective_call.hpp"
#include "sim/collectives/tensors/collectives.hpp"

/// Describes the tensors of one rank's collective as a Call.
///
/// Thread rule: pure.
namespace accel::sim {

struct NamedReduction {
  std::string_view name;  // static storage
  ReduceKind kind;
};
/// `reduce_op` is a c10d::ReduceOp::RedOpType. Throws ArgumentError for a reduction that Gloo lacks.
NamedReduction reduction_of(int reduce_op);

/// What messages and rules say of a tensor.
struct TensorDescription {
  c10::ScalarType dtype{};
  std::vector<std::int64_t> sizes, strides;  ///< no strides: the tensor is not strided
  bool is_contiguous = false;
  bool is_dense = false;  ///< no gaps and no overlaps, in any order
  std::string layout = "Strided";
  int sparse_dim = 0;  ///< COO: number of sparse dimensions
  int element_bytes = 0;
  std::int64_t bytes = 0;  ///< of the elements, or of the entries and their indices
};

/// Throws ArgumentError unless a tensor that is not contiguous has `count` parts of these sizes along dimension 0.
void check_rows(Collective op, const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& part,
                int count);

/// Describes one rank's call, at the program's current line.
Call call_of(Collective op, const std::vector<TensorDescription>& tensors, std::string_view reduce_op = {},
             int root = -1);

}  // namespace accel::sim
