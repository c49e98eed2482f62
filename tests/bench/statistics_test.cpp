// Expected values are those of scipy 1.17.1 (scipy.stats.mannwhitneyu, two-sided), or are counted by hand.
#include "bench/statistics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/core/errors.hpp"

namespace accel::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kRounding = 1e-12;

TEST(MedianTest, AnEvenNumberOfValuesGivesTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(MannWhitneyTest, SmallSamplesWithoutTiesAreExact) {
  const auto ages = mann_whitney({{.before = {19, 22, 16, 29, 24}, .after = {20, 11, 17, 12}}});
  EXPECT_TRUE(ages.exact);
  EXPECT_EQ(ages.u, 3);
  EXPECT_NEAR(ages.p, 0.1111111111111111, kRounding);
  const auto mixed =
      mann_whitney({{.before = {0.8, 1.2, 1.9, 3.1, 4.7, 5.5, 6.1}, .after = {2.2, 2.9, 4.1, 5.0, 7.3}}});
  EXPECT_EQ(mixed.u, 22);
  EXPECT_NEAR(mixed.p, 0.5303030303030304, kRounding);
}

TEST(MannWhitneyTest, SeparateSamplesHaveTheSmallestP) {
  // One of the 252 ways to choose 5 of 10 ranks, on both sides.
  const auto test = mann_whitney({{.before = {1, 2, 3, 4, 5}, .after = {6, 7, 8, 9, 10}}});
  EXPECT_EQ(test.u, 25);
  EXPECT_NEAR(test.p, 2.0 / 252, kRounding);
  EXPECT_NEAR(mann_whitney({{.before = {6, 7, 8, 9, 10}, .after = {1, 2, 3, 4, 5}}}).p, 2.0 / 252, kRounding);
}

TEST(MannWhitneyTest, TiesUseTheNormalApproximation) {
  const auto test = mann_whitney({{.before = {1, 2, 2, 3, 4, 4, 4, 5}, .after = {2, 3, 4, 5, 5, 6, 6}}});
  EXPECT_FALSE(test.exact);
  EXPECT_EQ(test.u, 42);
  EXPECT_NEAR(test.p, 0.11161176829829222, kRounding);
}

TEST(MannWhitneyTest, ManySamplesUseTheNormalApproximation) {
  Block block;
  for (int i = 0; i < 120; ++i) block.before.push_back(i * 37 % 211);
  for (int i = 0; i < 100; ++i) block.after.push_back(i * 53 % 223 + 9.5);
  const auto test = mann_whitney({block});
  EXPECT_FALSE(test.exact);
  EXPECT_EQ(test.u, 6753);
  EXPECT_NEAR(test.p, 0.10944303611564142, kRounding);
}

TEST(MannWhitneyTest, EqualValuesShowNoDifference) {
  EXPECT_EQ(mann_whitney({{.before = {2, 2, 2}, .after = {2, 2}}}).p, 1);
  EXPECT_EQ(mann_whitney({}).p, 1);
}

// p was counted over all 6 * 10 * 6 ways to exchange the samples within the three blocks.
TEST(MannWhitneyTest, OnlySamplesOfTheSameBlockAreCompared) {
  const auto test = mann_whitney({{.before = {1, 2.5}, .after = {2, 3}},
                                  {.before = {10, 12, 11}, .after = {14, 13}},
                                  {.before = {5, 6}, .after = {7, 4}}});
  EXPECT_TRUE(test.exact);
  EXPECT_EQ(test.u, 11);
  EXPECT_NEAR(test.p, 60.0 / 360, kRounding);
}

// The drift between blocks is ten times the difference. Without blocks the test does not see the difference.
TEST(MannWhitneyTest, ADifferenceIsFoundDespiteADriftBetweenBlocks) {
  std::vector<Block> blocks;
  Block together;
  for (int block = 0; block < 6; ++block) {
    const double level = 100 + 10 * (block % 3);
    blocks.push_back({.before = {level, level + 0.3}, .after = {level + 1, level + 1.2}});
    together.before.insert(together.before.end(), blocks.back().before.begin(), blocks.back().before.end());
    together.after.insert(together.after.end(), blocks.back().after.begin(), blocks.back().after.end());
  }
  EXPECT_LT(mann_whitney(blocks).p, 0.001);
  EXPECT_GT(mann_whitney({together}).p, 0.1);
}

TEST(MannWhitneyTest, ABlockWithoutSamplesOfOneSideIsAnError) {
  EXPECT_THROW(mann_whitney({{.before = {1, 2}, .after = {}}}), ArgumentError);
}

// 0.01 * 4, 0.02 * 3, 0.03 * 2 and 0.04 * 1, each at least as large as the one before.
TEST(HolmTest, TheSmallestPIsMultipliedByTheNumberOfTests) {
  EXPECT_THAT(holm({0.03, 0.01, 0.04, 0.02}), ElementsAre(DoubleNear(0.06, kRounding), DoubleNear(0.04, kRounding),
                                                          DoubleNear(0.06, kRounding), DoubleNear(0.06, kRounding)));
  EXPECT_THAT(holm({0.5, 0.9}), ElementsAre(1, 1));
  EXPECT_THAT(holm({}), IsEmpty());
}

}  // namespace
}  // namespace accel::bench
