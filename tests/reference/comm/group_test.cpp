// Tests of Group, the interface of all backends: every reduction by its definition, on each backend.
#include <map>

#include "reference/comm/group.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

class GroupTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& backend) { return name_of(backend.param); });

// Ranks 0, 1 and 2 have 3, 5 and 6, which is 011, 101 and 110.
std::map<ReduceOp, double> reductions_of(RankContext& rank, at::ScalarType dtype, const std::vector<ReduceOp>& ops) {
  std::map<ReduceOp, double> results;
  for (const auto op : ops) {
    auto value = torch::tensor(std::vector<std::int64_t>{3, 5, 6}).to(dtype).narrow(0, rank.rank, 1).clone();
    rank.world.all_reduce(value, op).wait();
    results[op] = value.item<double>();
  }
  return results;
}

TEST_P(GroupTest, AllReduceFollowsItsOperation) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const std::map<ReduceOp, double> of_floats{{ReduceOp::kSum, 14},
                                               {ReduceOp::kMean, 14.0 / 3},
                                               {ReduceOp::kProduct, 90},
                                               {ReduceOp::kMin, 3},
                                               {ReduceOp::kMax, 6}};
    EXPECT_EQ(reductions_of(rank, at::kDouble,
                            {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}),
              of_floats);
  });
}

TEST_P(GroupTest, AllReduceOfIntegersFollowsItsOperation) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const std::map<ReduceOp, double> of_integers{{ReduceOp::kSum, 14}, {ReduceOp::kProduct, 90}, {ReduceOp::kMax, 6}};
    EXPECT_EQ(reductions_of(rank, at::kLong, {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax}), of_integers);
  });
}

}  // namespace
}  // namespace accel::testing
