#include "reference/context_parallel/shard_sequence.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::HasSubstr;

TEST(ShardSequenceTest, PartsAreThoseOfThePositionsAndGiveTheCompleteTensor) {
  expect_property(40, [] {
    const int ranks = pick(1, 6);
    const SequencePlan plan({.length = 2 * ranks * pick<std::int64_t>(1, 4),
                             .num_ranks = ranks,
                             .order = pick_from({SequenceOrder::kContiguous, SequenceOrder::kZigzag})});
    const auto dim = pick<std::int64_t>(-2, 2);
    auto sizes = std::vector<std::int64_t>{3, 3};
    sizes[static_cast<std::size_t>((dim + 2) % 2)] = plan.length();
    const auto complete = at::arange(3 * plan.length()).view(sizes);
    run_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      const auto part = shard_sequence(complete, dim, plan, rank.rank);
      const auto positions = position_ids(plan, rank.rank);
      for (std::int64_t i = 0; i < plan.local_length(); ++i)
        RC_ASSERT(at::equal(part.select(dim, i), complete.select(dim, positions[i].item<std::int64_t>())));
      RC_ASSERT(at::equal(unshard_sequence(part, dim, plan, rank.world), complete));
    });
  });
}

// Every rank has a loss of the complete tensor, and of its own part of a parameter that all hold.
TEST(ShardSequenceTest, GradientsAreThoseOfTheSumOfAllRanksLosses) {
  expect_property(40, [] {
    const int ranks = pick(1, 6);
    const SequencePlan plan(
        {.length = 2 * ranks * pick<std::int64_t>(1, 4), .num_ranks = ranks, .order = SequenceOrder::kZigzag});
    auto generator = make_generator(pick<std::uint64_t>(0, 1000));
    const auto values = dyadic({2, plan.length()}, generator), factors = dyadic({ranks, plan.length()}, generator);
    run_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      auto part = shard_sequence(values, 1, plan, rank.rank).requires_grad_();
      (unshard_sequence(part, 1, plan, rank.world) * factors[rank.rank]).sum().backward();
      RC_ASSERT(at::equal(part.grad(), shard_sequence(factors.sum(0).expand({2, -1}), 1, plan, rank.rank)));

      auto shared = values.clone().requires_grad_();
      (shard_sequence(shared, 1, plan, rank.rank) * shard_sequence(factors[0], 0, plan, rank.rank)).sum().backward();
      auto gradient = shared.grad();
      rank.world.all_reduce(gradient).wait();
      RC_ASSERT(at::equal(gradient, factors[0].expand({2, -1})));
    });
  });
}

TEST(ShardSequenceTest, LabelsAreTheNextTokensOfTheCompleteSequence) {
  const auto labels = shift_labels(at::tensor({5, 6, 7, 8}, at::kLong).view({1, 4}));
  EXPECT_TRUE(at::equal(labels, at::tensor({6, 7, 8, -100}, at::kLong).view({1, 4})));
  EXPECT_TRUE(at::equal(shift_labels(at::tensor({5}, at::kLong), 0), at::tensor({0}, at::kLong)));
  EXPECT_THAT(message_of<ArgumentError>([] { shift_labels(at::ones({2, 0}, at::kLong)); }), HasSubstr("no tokens"));
}

TEST(ShardSequenceTest, TensorsOfAnotherLengthAreErrors) {
  const SequencePlan plan({.length = 8, .num_ranks = 2});
  EXPECT_THAT(message_of<ArgumentError>([&] {
                shard_sequence(at::ones({2, 6}), -1, plan, 0);
              }),
              HasSubstr("dimension -1 has 6 elements; expected 8"));
  EXPECT_THAT(message_of<ArgumentError>([&] { unshard_sequence(at::ones({4}), 0, plan, Group()); }),
              HasSubstr("the plan is for 2 ranks"));
}

}  // namespace
}  // namespace accel::testing
