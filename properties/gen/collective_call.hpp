#pragma once

#include <rapidcheck.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "tests/support/torch.hpp"

/// Random collectives for the property that the simulator gives Gloo's bytes.
namespace accel::testing {

enum class Op {
  kAllReduce,
  kAllReduceCoalesced,
  kReduce,
  kBroadcast,
  kAllGather,
  kAllGatherIntoTensor,
  kAllGatherCoalesced,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterTensor,
  kAllToAllSingle,
  kAllToAllUneven,
  kSendRecv,
  kBarrier,
  kCount
};

struct CollectiveCall {
  Op op = Op::kAllReduce;
  at::ScalarType dtype = at::kFloat;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  std::int64_t numel = 1;
  int root = 0;
  std::uint64_t seed = 0;
  bool special_values = false;  // infinities and NaN among floats
};

const char* name_of(Op op);
std::string describe(const CollectiveCall& call);

void showValue(const CollectiveCall& call, std::ostream& out);

/// Returns a generator of calls that both backends accept, for a group of `num_ranks`.
rc::Gen<CollectiveCall> collective_call(int num_ranks, std::int64_t max_numel);

/// Performs the call on one rank and returns every tensor that it may have changed.
std::vector<at::Tensor> perform(const CollectiveCall& call, const RankContext& rank);

/// Returns true if shape, dtype and every byte are equal. Only NaNs may differ in sign and payload, because the
/// compiler's choice of operand order decides those.
bool same_bytes(const at::Tensor& a, const at::Tensor& b);

}  // namespace accel::testing
