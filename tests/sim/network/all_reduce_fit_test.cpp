// Fitting a cost model to measured all-reduces, as sim-calibrate does. The measurements are generated from known
// costs, so the fit can be compared with the truth.
#include "sim/network/all_reduce_fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reference/core/errors.hpp"
#include "tests/sim/network/network_examples.hpp"

namespace accel::sim {
namespace {

// Realistic costs of processes on one machine: tens of microseconds, and about 1 GB/s.
constexpr AllReduceCosts kTruth{
    .overhead_seconds = 3e-5, .latency_seconds = 4e-5, .seconds_per_byte = 8e-10, .reduce_seconds_per_byte = 3e-10};

// Returns what a machine with these costs would measure, with a random relative error of about `noise`.
std::vector<MeasuredAllReduce> measure(const AllReduceCosts& costs, const std::vector<int>& ranks, double noise,
                                       int seed = 1) {
  std::vector<MeasuredAllReduce> measured;
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (const int num_ranks : ranks) {
    for (std::int64_t bytes = 4; bytes <= 64 << 20; bytes *= 4) {
      measured.push_back(
          {num_ranks, bytes, all_reduce_seconds(costs, num_ranks, bytes) * std::exp(noise * normal(engine))});
    }
  }
  return measured;
}

// All four costs, each up to a relative error.
void expect_near(const AllReduceCosts& found, const AllReduceCosts& truth, double relative) {
  EXPECT_NEAR(found.overhead_seconds, truth.overhead_seconds, relative * truth.overhead_seconds);
  EXPECT_NEAR(found.latency_seconds, truth.latency_seconds, relative * truth.latency_seconds);
  EXPECT_NEAR(found.seconds_per_byte, truth.seconds_per_byte, relative * truth.seconds_per_byte);
  EXPECT_NEAR(found.reduce_seconds_per_byte, truth.reduce_seconds_per_byte, relative * truth.reduce_seconds_per_byte);
  for (const auto& [bytes, factor] : found.size_factors) EXPECT_NEAR(factor, 1, relative) << bytes;
}

// The closed formula of the fit must equal the simulation of the messages, or fitted costs would predict other
// times.
TEST(AllReduceFitTest, TheFittedModelIsTheNetworksModel) {
  auto spec = testing::full_network();
  spec.overhead_seconds = 3e-5;
  for (const int ranks : {2, 3, 8}) {
    for (const std::int64_t bytes : {4, 4096, 1 << 20, 50 << 20}) {
      const auto ends = testing::run_together(spec, {.op = Collective::kAllReduce, .bytes = bytes, .num_ranks = ranks});
      const double expected = all_reduce_seconds({3e-5, 2e-5, 1e-9, 1e-10}, ranks, bytes);
      EXPECT_NEAR(testing::latest(ends), expected, 1e-9 * expected) << ranks << " ranks, " << bytes << " bytes";
    }
  }
}

// Without noise, fitting must invert the formula.
TEST(AllReduceFitTest, ExactTimesGiveTheExactCosts) {
  expect_near(fit_all_reduce(measure(kTruth, {2, 3, 4, 8}, 0)), kTruth, 1e-3);
}

// 52 times with an error of 1 %. The cost of reducing is off by up to 13 %, because its effect resembles that of
// sending.
TEST(AllReduceFitTest, NoisyTimesGiveApproximateCosts) {
  for (int seed = 1; seed <= 5; ++seed)
    expect_near(fit_all_reduce(measure(kTruth, {2, 3, 4, 8}, 0.01, seed)), kTruth, 0.15);
}

// Noise of 3 % enters the factors of the sizes: the worst of 13 times is off by less than three times as much.
TEST(AllReduceFitTest, TwoRanksDetermineTheTimesButNotTheCosts) {
  const auto found = fit_all_reduce(measure(kTruth, {2}, 0.03));
  for (const auto& exact : measure(kTruth, {2}, 0)) {
    EXPECT_NEAR(all_reduce_seconds(found, 2, exact.bytes), exact.seconds, 0.09 * exact.seconds) << exact.bytes;
  }
}

// Above 2 MiB every byte takes twice as long, which no cost expresses. Sizes between those of the fit are predicted
// too.
TEST(AllReduceFitTest, FactorsPerSizeExpressWhatCostsCannot) {
  auto truth = kTruth;
  truth.size_factors = {{1 << 20, 1}, {4 << 20, 2}};
  const auto found = fit_all_reduce(measure(truth, {2, 4}, 0));
  for (std::int64_t bytes = 4; bytes <= 64 << 20; bytes *= 2) {
    for (const int ranks : {2, 3, 4}) {
      const double exact = all_reduce_seconds(truth, ranks, bytes);
      EXPECT_NEAR(all_reduce_seconds(found, ranks, bytes), exact, 0.1 * exact)
          << ranks << " ranks, " << bytes << " bytes";
    }
  }
}

TEST(AllReduceFitTest, ImpossibleTimesAreRejected) {
  EXPECT_THROW(fit_all_reduce({}), ArgumentError);
  EXPECT_THROW(fit_all_reduce(std::vector<MeasuredAllReduce>{{2, 4, 0.0}}), ArgumentError);
  EXPECT_THROW(fit_all_reduce(std::vector<MeasuredAllReduce>{{1, 4, 1.0}}), ArgumentError);
}

}  // namespace
}  // namespace accel::sim
