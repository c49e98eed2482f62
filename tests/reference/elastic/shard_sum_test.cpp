// Sums over logical shards have the bits of one rank on any number of ranks.
#include "reference/elastic/shard_sum.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::shard_sum_test {
namespace {

using namespace accel::elastic;

TEST(ShardTreeTest, ShardsAreDividedEvenlyAndInOrder) {
  for (int num_shards = 1; num_shards <= 20; ++num_shards) {
    for (int num_ranks = 1; num_ranks <= num_shards; ++num_ranks) {
      int next = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const auto range = shards_of(rank, num_ranks, num_shards);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.size(), num_shards / num_ranks);
        EXPECT_LE(range.size(), (num_shards + num_ranks - 1) / num_ranks);
        next = range.last;
      }
      EXPECT_EQ(next, num_shards);
    }
  }
}

TEST(ShardTreeTest, ARangeLeavesItsCompleteSubtrees) {
  EXPECT_THAT(nodes_of({3, 6}), ::testing::ElementsAre(TreeNode{0, 3}, TreeNode{1, 2}));
  EXPECT_THAT(nodes_of({0, 8}), ::testing::ElementsAre(TreeNode{3, 0}));
  EXPECT_THAT(nodes_of({0, 7}), ::testing::ElementsAre(TreeNode{2, 0}, TreeNode{1, 2}, TreeNode{0, 6}));
  EXPECT_TRUE(nodes_of({4, 4}).empty());
}

// Parentheses show the order of additions.
TEST(ShardTreeTest, TheOrderOfAdditionsIsThatOfTheTree) {
  const auto add = [](std::string& left, const std::string& right) { left = "(" + left + right + ")"; };
  TreeSum<std::string, decltype(add)> sum(add);
  for (int shard = 0; shard < 7; ++shard) sum.push({0, shard}, std::to_string(shard));
  EXPECT_EQ(sum.finish(), "(((01)(23))((45)6))");
}

class ShardSumTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, ShardSumTest,
                         ::testing::Values(Backend::kSim, Backend::kGlooThreads, Backend::kGlooTcpThreads),
                         [](const auto& info) { return name_of(info.param); });

at::Tensor vector_of(int shard, std::int64_t size) {
  auto generator = make_generator(static_cast<std::uint64_t>(shard) + 1);
  return at::randn({size}, generator);
}

at::Tensor sum_of(Group group, int num_shards, std::int64_t size) {
  ShardSum sum(std::move(group), num_shards);
  for (int shard = sum.shards().first; shard < sum.shards().last; ++shard) sum.add(shard, vector_of(shard, size));
  return sum.finish(at::zeros({size}));
}

// Sizes that the ranks do not divide, fewer elements than ranks, shards that the ranks do not divide.
TEST_P(ShardSumTest, TheSumHasTheSameBitsOnAnyNumberOfRanks) {
  std::mt19937 random(std::random_device{}());
  for (int count = 0; count < 12; ++count) {
    const int num_shards = 1 + static_cast<int>(random() % 24);
    const int num_ranks = 1 + static_cast<int>(random() % std::min(num_shards, 6));
    const auto size = static_cast<std::int64_t>(1 + random() % 40);
    const auto expected = sum_of(Group(), num_shards, size);
    for (const auto& sum :
         collect_ranks(GetParam(), num_ranks, [&](RankContext& rank) { return sum_of(rank.world, num_shards, size); }))
      EXPECT_TRUE(at::equal(sum, expected)) << num_shards << " shards on " << num_ranks << " ranks, size " << size;
  }
}

}  // namespace
}  // namespace accel::testing::shard_sum_test
