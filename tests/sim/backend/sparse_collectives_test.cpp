// Sparse tensors in all_reduce: the sum, and what the simulator notices about them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing::sparse_collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Entry 2 twice, and one entry of the rank's own; the last rank has no entries.
at::Tensor entries_of(const RankContext& rank) {
  if (rank.rank == rank.world_size - 1) return at::sparse_coo_tensor({8}, at::TensorOptions().layout(at::kSparse));
  const auto indices = at::tensor({2, 2, rank.rank + 3}, at::kLong).view({1, 3});
  return at::sparse_coo_tensor(indices, at::tensor({0.5F, 0.25F, 1.0F + static_cast<float>(rank.rank)}), {8});
}

c10::intrusive_ptr<c10d::Work> all_reduce(RankContext& rank, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return rank.world.process_group()->allreduce(tensors);
}

std::string error_of(const std::function<void(RankContext&)>& program) {
  return message_of(sim::rehearse({.num_ranks = 3}, program).error);
}

TEST(SparseCollectivesTest, SumsTheEntriesOfAllRanks) {
  sim::simulate({.num_ranks = 3}, [](RankContext& rank) {
    const auto tensor = entries_of(rank);
    all_reduce(rank, tensor)->wait();
    EXPECT_TRUE(tensor.is_coalesced());
    EXPECT_TRUE(at::equal(tensor.to_dense(), at::tensor({0.0F, 0.0F, 1.5F, 1.0F, 2.0F, 0.0F, 0.0F, 0.0F})));
  });
}

TEST(SparseCollectivesTest, ADenseTensorOnOneRankIsNamed) {
  const auto error = error_of([](RankContext& rank) {
    const auto tensor = entries_of(rank);
    all_reduce(rank, rank.rank == 1 ? tensor.to_dense() : tensor)->wait();
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("the ranks' calls differ"), HasSubstr("all_reduce(sum, float32 [8], sparse_dim 1)"),
                    HasSubstr("rank 1: all_reduce(sum, float32 [8])")));
}

TEST(SparseCollectivesTest, AnotherNumberOfSparseDimensionsIsNamed) {
  const auto error =
      error_of([](RankContext& rank) { all_reduce(rank, at::eye(3).to_sparse(rank.rank == 2 ? 1 : 2))->wait(); });
  EXPECT_THAT(error, AllOf(HasSubstr("all_reduce(sum, float32 [3, 3], sparse_dim 2)"),
                           HasSubstr("rank 2: all_reduce(sum, float32 [3, 3], sparse_dim 1)")));
}

// The sum gives the tensor new values and indices, so even reading it is a race.
TEST(SparseCollectivesTest, ValuesMayBeReadButNotChangedBeforeTheWait) {
  const auto error_if_used = [](const std::function<void(at::Tensor tensor, at::Tensor values)>& use) {
    return error_of([&](RankContext& rank) {
      const auto tensor = entries_of(rank).coalesce();
      const auto values = tensor.values();
      const auto work = all_reduce(rank, tensor);
      if (rank.rank == 0) use(tensor, values);
      work->wait();
    });
  };
  EXPECT_EQ(error_if_used([](const at::Tensor& tensor, const at::Tensor& values) {
              values.sum();
              at::zeros_like(tensor);
            }),
            "");
  EXPECT_THAT(error_if_used([](const at::Tensor& tensor, const at::Tensor&) { tensor.to_dense(); }),
              HasSubstr("its tensor is read by aten::"));
  const auto changed = HasSubstr("rank 0 has not waited for it, and its tensor is changed by aten::mul_ before wait()");
  EXPECT_THAT(error_if_used([](const at::Tensor&, const at::Tensor& values) { values.mul_(2); }), changed);
  EXPECT_THAT(error_if_used([](const at::Tensor& tensor, const at::Tensor&) { tensor.mul_(2); }), changed);
}

}  // namespace
}  // namespace accel::testing::sparse_collectives
