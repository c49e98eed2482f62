#include "sim/programs/processes/divided_weights.hpp"

#include <gmock/gmock.h>

namespace accel::programs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DividedWeightsTest, EqualWeightsAreNoFindingInAnyOrderOfRanks) {
  DividedWeights weights(2);
  EXPECT_FALSE(weights.add(1, "a", 7, ""));
  EXPECT_FALSE(weights.add(1, "b", 8, ""));
  EXPECT_FALSE(weights.add(0, "a", 7, ""));
  EXPECT_FALSE(weights.add(0, "b", 8, ""));
}

TEST(DividedWeightsTest, TheFirstDifferenceIsTheOnlyFinding) {
  DividedWeights weights(3);
  for (const int rank : {0, 1, 2}) EXPECT_FALSE(weights.add(rank, "a", 7, ""));
  EXPECT_FALSE(weights.add(2, "b", 8, ""));
  EXPECT_FALSE(weights.add(1, "b", 8, ""));
  const auto finding = weights.add(0, "b", 9, "train.py:3");
  ASSERT_TRUE(finding);
  EXPECT_THAT(*finding, AllOf(HasSubstr("ranks 2 and 0 train parts of different models, first in b at train.py:3"),
                              HasSubstr("set_seed")));
  for (const int rank : {0, 1, 2}) EXPECT_FALSE(weights.add(rank, "c", rank, ""));
}

TEST(DividedWeightsTest, UnknownWeightsAreNotCompared) {
  DividedWeights weights(2);
  EXPECT_FALSE(weights.add(0, "a", 7, ""));
  EXPECT_FALSE(weights.add(1, "a", 0, ""));
  EXPECT_FALSE(weights.add(0, "b", 7, ""));
  EXPECT_FALSE(weights.add(1, "c", 8, ""));
}

}  // namespace
}  // namespace accel::programs
