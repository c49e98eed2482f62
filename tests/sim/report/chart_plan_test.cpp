// What charts show if there are more losses or ranks than pixels. Thinning must not hide what a reader looks for:
// extremes, gaps and the slowest rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sim/report/loss_curve.hpp"
#include "sim/report/step_bars.hpp"

namespace accel::sim::report {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::pair<std::size_t, std::size_t>> pairs(const std::vector<StepRange>& ranges) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const auto& range : ranges) pairs.emplace_back(range.first, range.last);
  return pairs;
}

// A line over a gap would suggest losses that do not exist.
TEST(LossCurveTest, LineBreaksWhereALossIsNotFinite) {
  const std::vector<double> losses = {1, 2, kNaN, 3, kInfinity, -kInfinity, 4};
  EXPECT_THAT(pairs(ranges_of(losses, /*drawable=*/true)),
              ElementsAre(std::pair(0, 2), std::pair(3, 4), std::pair(6, 7)));
  EXPECT_THAT(pairs(ranges_of(losses, /*drawable=*/false)), ElementsAre(std::pair(2, 3), std::pair(4, 6)));
}

// A gap narrower than a pixel would only make the line look broken.
TEST(LossCurveTest, InvisibleGapsDoNotBreakTheLine) {
  const std::vector<double> losses = {1, kNaN, 2, kNaN, kNaN, 3};
  EXPECT_THAT(pairs(ranges_of(losses, /*drawable=*/true, /*least_gap=*/2)),
              ElementsAre(std::pair(0, 3), std::pair(5, 6)));
}

// Two buckets of four losses, of each of which the minimum and the maximum remain.
TEST(LossCurveTest, ThinnedCurveKeepsItsExtremesInOrder) {
  const std::vector<double> losses = {5, 1, 2, 3, kNaN, 9, 0, 4};
  EXPECT_THAT(thinned(losses, {0, 8}, 2), ElementsAre(0, 1, 5, 6));
  EXPECT_THAT(thinned(losses, {0, 4}, 4), ElementsAre(0, 1, 2, 3));
}

// One NaN would otherwise make the mean NaN for the rest of the run.
TEST(LossCurveTest, MeanLeavesOutWhatIsNotFinite) {
  EXPECT_THAT(moving_mean({1, 2, kNaN, 6, 7}, {0, 5}, 3), ElementsAre(1, DoubleEq(1.5), 4, DoubleEq(6.5), 7));
  EXPECT_TRUE(std::isnan(moving_mean({kNaN, 1}, {0, 2}, 1).front()));
}

// At the ends the window must shrink on both sides, or the mean would be shifted.
TEST(LossCurveTest, MeanOfAStraightLineIsTheLine) {
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) losses.push_back(3.0 * step);
  const auto means = moving_mean(losses, {0, 40}, 7);
  for (std::size_t step = 0; step < 40; ++step) EXPECT_DOUBLE_EQ(means[step], losses[step]) << step;
}

TEST(StepBarsTest, FewRanksHaveABarEach) {
  const auto bars = plan_bars(std::vector<StepBreakdown>(3, {1, 2, 3}), 3);
  ASSERT_EQ(bars.size(), 3u);
  EXPECT_EQ(bars[2].label, "2");
  EXPECT_EQ(bars[2].name, "rank 2");
  EXPECT_EQ(bars[2].slowest, -1);
  EXPECT_EQ(total(bars[2].mean), 6);
}

// 11 ranks in three bars: 4 + 4 + 3.
TEST(StepBarsTest, ManyRanksShareABarThatNamesItsSlowest) {
  std::vector<StepBreakdown> ranks(11, {1, 0, 0});
  ranks[6].compute = 9;
  const auto bars = plan_bars(ranks, 3);
  ASSERT_EQ(bars.size(), 3u);
  EXPECT_EQ(bars[1].label, "4");
  EXPECT_EQ(bars[1].name, "ranks 4-7");
  EXPECT_EQ(bars[1].slowest, 6);
  EXPECT_EQ(bars[1].slowest_compute, 9);
  EXPECT_EQ(bars[1].mean.compute, 3);
  EXPECT_EQ(bars[2].name, "ranks 8-10");
  EXPECT_EQ(bars[2].mean.compute, 1);
}

TEST(StepBarsTest, UnexplainedTimeOfASweepIsCompute) {
  const auto bars = plan_bars(std::vector<ScalePoint>{{.ranks = 2048,
                                                       .step_seconds = 10,
                                                       .efficiency = 0.5,
                                                       .exposed_communication_seconds = 3,
                                                       .straggler_seconds = 2}});
  ASSERT_EQ(bars.size(), 1u);
  EXPECT_EQ(bars[0].label, "2,048");
  EXPECT_EQ(bars[0].mean.compute, 5);
}

}  // namespace
}  // namespace accel::sim::report
