#pragma once

#include <cstdint>
#include <vector>

#include "backends/process/message.hpp"

namespace accel::process {

/// The methods of c10d::Backend, by name.
enum class Method : std::uint32_t {
  kBroadcast,
  kAllReduce,
  kAllReduceSparse,  ///< the inputs are the indices and the values
  kAllReduceCoalesced,
  kReduce,
  kAllGather,
  kAllGatherBase,
  kAllGatherCoalesced,
  kAllGatherIntoTensorCoalesced,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterBase,
  kReduceScatterTensorCoalesced,
  kAllToAllBase,
  kAllToAll,
  kSend,
  kRecv,
  kRecvAnySource,
  kBarrier,
  kMonitoredBarrier,
};

/// A tensor in a rank's payload.
struct PlacedTensor {
  std::uint64_t offset = 0;  ///< of its first byte in memory
  std::uint64_t bytes = 0;   ///< from its first to its last element, gaps included
  int dtype = 0;             ///< at::ScalarType
  std::vector<std::int64_t> sizes, strides;
};

MessageWriter& operator<<(MessageWriter& message, const PlacedTensor& placed);
PlacedTensor read_placed_tensor(MessageReader& message);

/// One call of a method of c10d::Backend.
struct Operation {
  Method method{};
  std::uint32_t group = 0;  ///< its number
  int reduce_op = 0;        ///< c10d::ReduceOp::RedOpType
  int root = -1;            ///< or peer; group rank
  int tag = 0;
  std::vector<std::vector<PlacedTensor>> inputs, outputs;  ///< one list, except for lists of lists
  std::vector<std::int64_t> sizes;                         ///< of a sparse tensor
  std::vector<std::int64_t> input_splits, output_splits;
};
MessageWriter& operator<<(MessageWriter& message, const Operation& operation);
Operation read_operation(MessageReader& message);

}  // namespace accel::process
