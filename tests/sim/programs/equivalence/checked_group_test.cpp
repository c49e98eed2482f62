// Real Gloo ranks whose calls differ: every rank gets one error, at once.
#include "sim/programs/equivalence/checked_group.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::checked_group {
namespace {

using programs::CheckedGroup;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Program = std::function<void(CheckedGroup&, int rank)>;
constexpr int kRanks = 3;
constexpr auto kTimeout = std::chrono::seconds(30);

// Runs case 7 on real ranks and returns each rank's CommError.
std::vector<std::string> errors_of(const Program& program) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(kRanks);
  run_ranks(Backend::kGlooThreads, kRanks, [&](RankContext& rank) {
    CheckedGroup group("world", store, rank.rank, kRanks, {.timeout = kTimeout});
    group.begin_case(7);
    errors[rank.rank] = message_of<CommError>([&] {
      program(group, rank.rank);
      group.end_case();
    });
  });
  return errors;
}

// Returns the error of the ranks, which must be the same on every rank and arrive long before the time-out.
std::string one_error_of(const Program& program) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of(program);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout / 3);
  EXPECT_THAT(errors, Each(errors[0]));
  EXPECT_THAT(errors[0], AllOf(Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised"))));
  return errors[0];
}

void sum(const CheckedGroup& group, at::Tensor tensor, ReduceOp op = ReduceOp::kSum) {
  group.group().all_reduce(tensor, op).wait();
}

TEST(CheckedGroupTest, EqualCallsHaveTheResultsOfGloo) {
  const auto errors = errors_of([](CheckedGroup& checked, int rank) {
    const auto group = checked.group();
    auto reduced = at::full({4}, rank + 1.0);
    group.all_reduce(reduced).wait();
    EXPECT_TRUE(at::equal(reduced, at::full({4}, 6.0)));
    auto copied = at::full({2}, rank, at::kLong);
    group.broadcast(copied, 2).wait();
    EXPECT_TRUE(at::equal(copied, at::full({2}, 2, at::kLong)));
    EXPECT_TRUE(at::equal(group.all_gather(at::full({1}, rank, at::kLong)), at::arange(kRanks)));
    auto part = at::zeros({1});
    group.reduce_scatter(part, at::arange(kRanks).to(at::kFloat)).wait();
    EXPECT_EQ(part.item<float>(), 3.0F * static_cast<float>(rank));
    group.barrier();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(CheckedGroupTest, OtherCollectivesHaveTheResultsOfGloo) {
  const auto errors = errors_of([](CheckedGroup& checked, int rank) {
    const auto process_group = checked.group().process_group();
    std::vector<at::Tensor> own{at::full({2}, rank + 1.0)}, received{at::zeros({2})};
    const auto empty_list = [] { return std::vector<at::Tensor>{at::zeros({2}), at::zeros({2}), at::zeros({2})}; };
    std::vector<std::vector<at::Tensor>> lists{empty_list()}, none;
    process_group->allgather(lists, own)->wait();
    EXPECT_TRUE(at::equal(lists[0][2], at::full({2}, 3.0)));
    process_group->scatter(received, rank == 0 ? lists : none, {})->wait();
    EXPECT_TRUE(at::equal(received[0], own[0]));
    std::vector<std::vector<at::Tensor>> gathered{empty_list()};
    process_group->gather(rank == 0 ? gathered : none, own, {})->wait();
    if (rank == 0) EXPECT_TRUE(at::equal(gathered[0][1], at::full({2}, 2.0)));
    process_group->reduce(own, {})->wait();
    if (rank == 0) EXPECT_TRUE(at::equal(own[0], at::full({2}, 6.0)));
    std::vector<at::Tensor> sparse{at::full({2}, rank).to_sparse()};
    process_group->allreduce(sparse)->wait();
    EXPECT_TRUE(at::equal(sparse[0].to_dense(), at::full({2}, 3)));
    std::vector<at::Tensor> several{at::ones({1}), at::ones({2})};
    process_group->allreduce_coalesced(several)->wait();
    EXPECT_TRUE(at::equal(several[1], at::full({2}, 3.0)));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Rank r sends r + 1 rows to every rank, so the shapes differ between the ranks.
TEST(CheckedGroupTest, RanksMayExchangeDifferentNumbersOfRows) {
  const auto errors = errors_of([](CheckedGroup& checked, int rank) {
    auto received = at::zeros({6, 2});
    const auto rows = at::full({kRanks * (rank + 1), 2}, rank);
    const std::vector<std::int64_t> sent(kRanks, rank + 1);
    checked.group().all_to_all(received, rows.to(at::kFloat), {1, 2, 3}, sent).wait();
    EXPECT_EQ(received.sum().item<float>(), 2.0F * (0 * 1 + 1 * 2 + 2 * 3));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(CheckedGroupTest, MessagesAndFuturesAreForwarded) {
  const auto errors = errors_of([](CheckedGroup& checked, int rank) {
    const auto group = checked.group();
    auto number = at::full({1}, rank + 5);
    if (rank == 0) group.send(number, 1).wait();
    if (rank == 1) group.recv(number, 0).wait();
    if (rank == 1) EXPECT_EQ(number.item<int>(), 5);
    std::vector<at::Tensor> tensors{at::ones({2})};
    const auto future = group.process_group()->allreduce(tensors)->getFuture();
    future->wait();
    EXPECT_EQ(future->value().toTensorVector().at(0).sum().item<float>(), 6.0F);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(CheckedGroupTest, AnotherOperationIsNamedWithItsRankAndLine) {
  const auto error = one_error_of([](CheckedGroup& group, int rank) {
    auto tensor = at::ones({4});
    sum(group, at::ones({2}));
    if (rank == 1) return group.group().broadcast(tensor).wait();
    sum(group, tensor);
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("call #1 of group world in case 7: the ranks' calls differ"),
                    HasSubstr("\n  ranks 0, 2: all_reduce(sum, float32 [4]) at "),
                    HasSubstr("\n  rank 1: broadcast(float32 [4], root 0) at "), HasSubstr("checked_group_test.cpp:")));
}

TEST(CheckedGroupTest, AnotherDtypeIsNamed) {
  EXPECT_THAT(
      one_error_of(
          [](CheckedGroup& group, int rank) { sum(group, at::ones({4}, rank == 2 ? at::kDouble : at::kFloat)); }),
      AllOf(HasSubstr("ranks 0-1: all_reduce(sum, float32 [4])"), HasSubstr("rank 2: all_reduce(sum, float64 [4])")));
}

TEST(CheckedGroupTest, AnotherShapeIsNamed) {
  EXPECT_THAT(
      one_error_of([](CheckedGroup& group, int rank) { std::ignore = group.group().all_gather(at::ones({rank + 1})); }),
      AllOf(HasSubstr("rank 0: all_gather_into_tensor(float32 [1])"),
            HasSubstr("rank 1: all_gather_into_tensor(float32 [2])"),
            HasSubstr("rank 2: all_gather_into_tensor(float32 [3])")));
}

TEST(CheckedGroupTest, AnotherRootIsNamed) {
  const auto error = one_error_of([](CheckedGroup& group, int rank) {
    auto tensor = at::ones({4});
    group.group().broadcast(tensor, rank == 0 ? 1 : 0).wait();
  });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0: broadcast(float32 [4], root 1)"),
                           HasSubstr("ranks 1-2: broadcast(float32 [4], root 0)")));
}

TEST(CheckedGroupTest, AnotherReduceOperationIsNamed) {
  EXPECT_THAT(one_error_of([](CheckedGroup& group, int rank) {
                sum(group, at::ones({4}), rank == 1 ? ReduceOp::kMax : ReduceOp::kSum);
              }),
              AllOf(HasSubstr("ranks 0, 2: all_reduce(sum"), HasSubstr("rank 1: all_reduce(max")));
}

TEST(CheckedGroupTest, AnotherDtypeOfAnExchangeIsNamed) {
  EXPECT_THAT(one_error_of([](CheckedGroup& group, int rank) {
                const auto rows = at::ones({3}, rank == 0 ? at::kInt : at::kFloat);
                auto received = at::empty_like(rows);
                group.group().all_to_all(received, rows).wait();
              }),
              AllOf(HasSubstr("rank 0: all_to_all_single(int32)"), HasSubstr("ranks 1-2: all_to_all_single(float32)")));
}

TEST(CheckedGroupTest, OneCallMoreOnOneRankMeetsTheEndOfTheCase) {
  EXPECT_THAT(one_error_of([](CheckedGroup& group, int rank) {
                sum(group, at::ones({4}));
                if (rank == 0) group.group().barrier();
              }),
              AllOf(HasSubstr("call #1 of group world in case 7"), HasSubstr("rank 0: barrier() at "),
                    HasSubstr("ranks 1-2: end of the case")));
}

TEST(CheckedGroupTest, AnotherOrderIsNamedBeforeATensorChanges) {
  EXPECT_THAT(one_error_of([](CheckedGroup& group, int rank) {
                auto first = at::full({4}, rank + 1.0), second = at::ones({4}, at::kLong);
                const auto error = message_of<CommError>([&] {
                  sum(group, rank == 2 ? second : first);
                  sum(group, rank == 2 ? first : second);
                });
                EXPECT_TRUE(at::equal(first, at::full({4}, rank + 1.0)));
                EXPECT_TRUE(at::equal(second, at::ones({4}, at::kLong)));
                throw CommError(error);
              }),
              AllOf(HasSubstr("call #0 of group world"), HasSubstr("rank 2: all_reduce(sum, int64 [4])")));
}

TEST(CheckedGroupTest, WrongArgumentsOnOneRankAreAnErrorOnEveryRank) {
  EXPECT_THAT(one_error_of([](CheckedGroup& checked, int rank) {
                auto output = at::zeros({rank == 1 ? 4 : 6}), input = at::ones({2});
                checked.group().process_group()->_allgather_base(output, input)->wait();
              }),
              AllOf(HasSubstr("ranks 0, 2: all_gather_into_tensor(float32 [2])"),
                    HasSubstr("rank 1: wrong arguments: all_gather_into_tensor: got 4 elements")));
}

TEST(CheckedGroupTest, WrongArgumentsOnEveryRankAreAnArgumentError) {
  EXPECT_THAT(errors_of([](CheckedGroup& checked, int) {
                auto output = at::zeros({4}), input = at::ones({2});
                EXPECT_THROW(checked.group().process_group()->_allgather_base(output, input), ArgumentError);
                sum(checked, at::ones({1}));
              }),
              Each(IsEmpty()));
}

TEST(CheckedGroupTest, LongCallsAreCutAndStillCompared) {
  EXPECT_THAT(one_error_of([](CheckedGroup& checked, int rank) {
                std::vector<at::Tensor> tensors(100, at::ones({2, 3}));
                if (rank == 1) tensors.back() = at::ones({3, 2});
                checked.group().process_group()->allreduce_coalesced(tensors)->wait();
              }),
              AllOf(HasSubstr("ranks 0, 2: all_reduce_coalesced(sum, float32 [2, 3], "), HasSubstr("...\n  rank 1: ")));
}

TEST(CheckedGroupTest, ADifferentCaseIsNamed) {
  EXPECT_THAT(one_error_of([](CheckedGroup& group, int rank) {
                if (rank == 1) group.begin_case(8);
                sum(group, at::ones({4}));
              }),
              AllOf(HasSubstr("call #0 of group world in case 7"), HasSubstr("(call #0 in case 8)")));
}

TEST(CheckedGroupTest, AFreshGroupWorksAfterAnError) {
  one_error_of([](CheckedGroup& group, int rank) { sum(group, at::ones({rank + 1})); });
  EXPECT_THAT(errors_of([](CheckedGroup& group, int) { sum(group, at::ones({4})); }), Each(IsEmpty()));
}

TEST(CheckedGroupTest, ALateRankIsATimeOutWithoutFrames) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(Backend::kGlooThreads, 2, [&](RankContext& rank) {
    CheckedGroup group("late", store, rank.rank, 2, {.timeout = std::chrono::milliseconds(300)});
    group.begin_case(3);
    if (rank.rank == 0) {
      const auto error = message_of<CommError>([&] { sum(group, at::ones({4})); });
      EXPECT_THAT(error, AllOf(HasSubstr("rank 0: all_reduce(sum, float32 [4]), call #0 of group late in case 3: "),
                               Not(HasSubstr("\n"))));
    }
    rank.world.barrier();
  });
}

TEST(CheckedGroupTest, MessagesOfLibTorchLoseTheirFrames) {
  try {
    TORCH_CHECK(false, "Invalid mt19937 state");
  } catch (const std::exception& error) {
    EXPECT_EQ(programs::message_without_frames(error), "Invalid mt19937 state");
  }
  EXPECT_EQ(programs::message_without_frames(CommError("first\n  rank 1: second")), "first\n  rank 1: second");
}

}  // namespace
}  // namespace accel::testing::checked_group
