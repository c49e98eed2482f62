#pragma once

#include <cstdint>
#include <vector>

#include "backends/process/message.hpp"
#include "reference/core/collective.hpp"

namespace accel::process {

/// A tensor in a rank's payload.
struct PlacedTensor {
  std::uint64_t offset = 0;  ///< of its first byte in memory
  std::uint64_t bytes = 0;   ///< from its first to its last element, gaps included
  int dtype = 0;             ///< at::ScalarType
  std::vector<std::int64_t> sizes, strides;
};

MessageWriter& operator<<(MessageWriter& message, const PlacedTensor& placed);
PlacedTensor read_placed_tensor(MessageReader& message);

/// CollectiveArgs whose tensors are in the payload.
struct Operation {
  Collective collective{};
  std::uint32_t group = 0;  ///< its number
  int reduce_op = 0;        ///< c10d::ReduceOp::RedOpType
  int root = -1;            ///< or peer; group rank
  int tag = 0;
  bool is_in_gloo = true;  ///< see is_in_gloo of collective_args.hpp
  bool is_sparse = false;  ///< the inputs are the indices and the values of one tensor
  std::vector<PlacedTensor> inputs, outputs;
  std::vector<std::int64_t> sizes;  ///< of a sparse tensor
  std::vector<std::int64_t> input_splits, output_splits;
};
MessageWriter& operator<<(MessageWriter& message, const Operation& operation);
Operation read_operation(MessageReader& message);

}  // namespace accel::process
