// A program with one wrong call, which both the simulator and Gloo run. The first collective and the barrier are
// right, so that the mismatch is in the middle of the sequence.
#include "tests/support/mismatched_calls.hpp"

#include <ATen/ops/full.h>

namespace accel::testing {
namespace {

constexpr int kWrongRank = 2;
constexpr int kElements = 4;

// Only "wrong_size" changes the number of bytes, which is all that Gloo itself can notice.
at::Tensor wrong_call(RankContext& rank, const std::string& mismatch, at::Tensor tensor) {
  if (mismatch == "wrong_op") return rank.world.all_gather(tensor);
  if (mismatch == "wrong_size") tensor = at::full({1000 * kElements}, 1.0);
  if (mismatch == "wrong_shape") tensor = tensor.view({2, kElements / 2});
  rank.world.all_reduce(tensor, mismatch == "wrong_reduce_op" ? ReduceOp::kMax : ReduceOp::kSum).wait();
  return tensor;
}

}  // namespace

std::vector<float> call_with_a_mismatch(RankContext& rank, const std::string& mismatch) {
  auto first = at::full({kElements}, 1.0);
  rank.world.all_reduce(first).wait();
  auto second = at::full({kElements}, rank.rank + 1.0);
  if (rank.rank == kWrongRank) {
    second = wrong_call(rank, mismatch, second);
  } else {
    rank.world.all_reduce(second).wait();
  }
  rank.world.barrier();
  return {second.data_ptr<float>(), second.data_ptr<float>() + second.numel()};
}

}  // namespace accel::testing
