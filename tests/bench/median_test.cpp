#include "bench/median.hpp"

#include <gtest/gtest.h>

namespace accel::bench {
namespace {

TEST(MedianTest, AnEvenNumberOfValuesGivesTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace accel::bench
