// Tests of Group, the interface of all backends: every reduction by its definition, on each backend.
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "reference/comm/dtypes.hpp"
#include "reference/comm/group.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

const std::vector<at::ScalarType> kDtypes{
    at::kByte,          at::kChar,        at::kShort,           at::kInt,
    at::kLong,          at::kUInt16,      at::kUInt32,          at::kUInt64,
    at::kHalf,          at::kBFloat16,    at::kFloat,           at::kDouble,
    at::kBool,          at::kComplexHalf, at::kComplexFloat,    at::kComplexDouble,
    at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};

at::Tensor rows_of(int rank, at::ScalarType dtype, std::int64_t num_rows = 2) {
  return (torch::arange(num_rows * 3, at::kFloat).view({num_rows, 3}).remainder(4) + rank).to(dtype);
}

bool have_equal_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         one.contiguous().view(at::kByte).equal(other.contiguous().view(at::kByte));
}

TEST_P(GroupTest, CollectivesThatMoveDataSupportEveryDtype) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    const auto& group = rank.world;
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(c10::toString(dtype));
      const auto own = rows_of(rank.rank, dtype), first = rows_of(0, dtype), second = rows_of(1, dtype);
      auto rows = own.clone();
      group.broadcast(rows, 1).wait();
      EXPECT_TRUE(have_equal_bytes(rows, second));
      auto permuted = own.t().contiguous().t();
      group.broadcast(permuted, 1).wait();
      EXPECT_TRUE(have_equal_bytes(permuted, second));
      auto scalar = own[0][rank.rank].clone();
      group.broadcast(scalar).wait();
      EXPECT_TRUE(have_equal_bytes(scalar.view({1}), first[0].slice(0, 0, 1)));
      const auto all = group.all_gather(own.t().contiguous().t());
      EXPECT_TRUE(have_equal_bytes(all.slice(0, 0, 2), first) && have_equal_bytes(all.slice(0, 2, 4), second));
      auto flat = torch::zeros({12}, dtype);
      group.all_gather_into(flat, own.flatten()).wait();
      EXPECT_TRUE(have_equal_bytes(flat, all.flatten()));
      // Rank 0 sends one row to itself and two to rank 1; rank 1 sends none to rank 0.
      const bool is_first = rank.rank == 0;
      const auto sent = rows_of(rank.rank, dtype, is_first ? 3 : 1);
      auto received = torch::zeros({is_first ? 1 : 3, 3}, dtype);
      group
          .all_to_all(received, sent, is_first ? std::vector<std::int64_t>{1, 0} : std::vector<std::int64_t>{2, 1},
                      is_first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{0, 1})
          .wait();
      EXPECT_TRUE(
          have_equal_bytes(received.slice(0, 0, 1), rows_of(0, dtype, 3).slice(0, is_first ? 0 : 1, is_first ? 1 : 2)));
      auto message = own.clone();
      (is_first ? group.send(message, 1) : group.recv(message, 0)).wait();
      EXPECT_TRUE(have_equal_bytes(message, first));
    }
  });
}

TEST_P(GroupTest, ReductionsNameADtypeThatNoBackendReduces) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    for (const auto dtype : {at::kShort, at::kUInt16, at::kFloat8_e5m2}) {
      auto value = rows_of(rank.rank, dtype);
      EXPECT_THAT(message_of<ArgumentError>([&] { rank.world.all_reduce(value).wait(); }),
                  AllOf(HasSubstr("all_reduce: "), HasSubstr(std::string(dtype_name(dtype)))));
    }
    auto complex = rows_of(rank.rank, at::kComplexFloat);
    rank.world.all_reduce(complex).wait();
    EXPECT_TRUE(complex.equal(rows_of(0, at::kComplexFloat) + rows_of(1, at::kComplexFloat)));
    EXPECT_THAT(message_of<ArgumentError>([&] { rank.world.all_reduce(complex, ReduceOp::kMax).wait(); }),
                HasSubstr("complex64"));
  });
}

}  // namespace
}  // namespace accel::testing
