#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "reference/core/collective.hpp"

/// One rank's call of a collective as data, whichever method of c10d::Backend was called, and the checks of its
/// arguments. The checks throw ArgumentError with a message that begins with the collective's name.
///
/// Thread rule: pure.
namespace accel {

struct CollectiveArgs {
  using Tensors = std::vector<at::Tensor>;
  Collective collective{};
  Tensors inputs = {};   ///< an in-place collective writes its result here
  Tensors outputs = {};  ///< a list per rank (all_gather_coalesced): those of rank 0, then those of rank 1, and so on
  c10d::ReduceOp reduce_op = c10d::ReduceOp::SUM;
  int root = -1;  ///< group rank: the root, or the peer of a message; -1: there is none, or any source
  int tag = 0;    ///< of a message
  std::vector<std::int64_t> input_splits = {}, output_splits = {};  ///< rows per rank; empty: equal parts
  bool is_async = true;                                             ///< false: the caller waits at once
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;          ///< unset: the group's
};

[[nodiscard]] bool is_sparse(const CollectiveArgs& args);
/// The tensors that hold the result, as c10d::Work returns them: one list, or one per rank (all_gather_coalesced), or
/// none.
[[nodiscard]] std::vector<CollectiveArgs::Tensors> results_of(const CollectiveArgs& args);
[[nodiscard]] c10d::OpType op_type_of(const CollectiveArgs& args);
/// Whether ProcessGroupGloo of this LibTorch has the collective: it has the list all_to_all from 2.12 on.
[[nodiscard]] bool is_in_gloo(Collective op);
/// Calls the method of c10d::Backend that has these arguments.
[[nodiscard]] c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const CollectiveArgs& args);

// --- checks ---------------------------------------------------------------------------------------------------------
void check_one(Collective op, const std::vector<at::Tensor>& tensors);
/// `what` names the tensors: "inputs" in "scatter inputs: got 3 tensors; ...".
void check_count(Collective op, std::string_view what, std::size_t given, std::size_t expected);
void check_same(Collective op, const at::Tensor& tensor, const at::Tensor& like);
void check_root(Collective op, int root, int num_ranks);
/// Checks that a tensor has the elements of `count` parts, and their dtype.
void check_parts(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count);
void check_one_dtype(Collective op, const std::vector<at::Tensor>& tensors);

}  // namespace accel
