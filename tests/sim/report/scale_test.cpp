// Scales and axes of charts: a mapping from numbers to pixels with round ticks.
#include "sim/report/scale.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/core/errors.hpp"

namespace accel::sim::report {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(ScaleTest, AReversedAxisHasItsLowestNumberAtTheBottom) {
  const Scale scale({0, 10}, {200, 100});
  EXPECT_EQ(scale(0), 200);
  EXPECT_EQ(scale(10), 100);
  EXPECT_EQ(scale(2.5), 175);
}

TEST(ScaleTest, TicksAreRoundAndWithinTheDomain) {
  EXPECT_THAT(Scale({0, 0.0255}, {0, 1}).ticks(5), ElementsAre(0, DoubleEq(0.01), DoubleEq(0.02)));
  EXPECT_THAT(Scale({-1, 1}, {0, 1}).ticks(4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  // Ticks of large numbers with a small range expose cancellation.
  EXPECT_THAT(Scale({1e9, 1e9 + 4}, {0, 1}).ticks(4), ElementsAre(1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4));
}

TEST(ScaleTest, PowersOfTenAreEquallyFarApartOnALogarithmicAxis) {
  const Scale scale({1, 1000}, {0, 300}, Scale::Kind::kLogarithmic);
  EXPECT_DOUBLE_EQ(scale(10), 100);
  EXPECT_DOUBLE_EQ(scale(100), 200);
  EXPECT_THAT(scale.ticks(4), ElementsAre(1, 10, 100, 1000));
  EXPECT_THAT(Scale({1.5, 12}, {0, 1}, Scale::Kind::kLogarithmic).ticks(5), ElementsAre(2, 5, 10));
  // 600 powers of ten must be thinned out.
  EXPECT_LE(Scale({1e-300, 1e300}, {0, 1}, Scale::Kind::kLogarithmic).ticks(5).size(), 8u);
}

TEST(ScaleTest, AnAxisStartsAndEndsAtATickAndIsNeverEmpty) {
  const auto expect = [](Interval given, double low, double high) {
    const auto rounded = rounded_out(given, 5);
    EXPECT_DOUBLE_EQ(rounded.low, low) << given.low << " to " << given.high;
    EXPECT_DOUBLE_EQ(rounded.high, high) << given.low << " to " << given.high;
  };
  expect({0, 0.0255}, 0, 0.03);
  expect({1.66, 2.31}, 1.6, 2.4);
  // A single value gets a range around it.
  expect({3, 3}, 2.6, 3.4);
  expect({0, 0}, -1, 1);
}

TEST(ScaleTest, AnInvalidAxisIsAnError) {
  EXPECT_THROW(Scale({1, 1}, {0, 1}), InternalError);
  EXPECT_THROW(Scale({0, 1.0 / 0.0}, {0, 1}), InternalError);
  EXPECT_THROW(Scale({0, 1}, {0, 1}, Scale::Kind::kLogarithmic), InternalError);
}

}  // namespace
}  // namespace accel::sim::report
