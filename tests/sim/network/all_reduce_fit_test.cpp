#include "sim/network/all_reduce_fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reference/core/errors.hpp"
#include "tests/sim/network/network_examples.hpp"

namespace accel::sim {
namespace {

constexpr AllReduceCosts kTruth{
    .overhead_seconds = 3e-5, .latency_seconds = 4e-5, .seconds_per_byte = 8e-10, .reduce_seconds_per_byte = 3e-10};

// What a machine with these costs would measure, each time off by a random factor of about `noise`.
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

void expect_near(const AllReduceCosts& found, const AllReduceCosts& truth, double relative) {
  EXPECT_NEAR(found.overhead_seconds, truth.overhead_seconds, relative * truth.overhead_seconds);
  EXPECT_NEAR(found.latency_seconds, truth.latency_seconds, relative * truth.latency_seconds);
  EXPECT_NEAR(found.seconds_per_byte, truth.seconds_per_byte, relative * truth.seconds_per_byte);
  EXPECT_NEAR(found.reduce_seconds_per_byte, truth.reduce_seconds_per_byte, relative * truth.reduce_seconds_per_byte);
  for (const auto& [bytes, factor] : found.size_factors) EXPECT_NEAR(factor, 1, relative) << bytes;
}

TEST(AllReduceFitTest, TheModelIsTheNetworksOwn) {
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

TEST(AllReduceFitTest, FromExactTimesTheCostsComeBack) {
  expect_near(fit_all_reduce(measure(kTruth, {2, 3, 4, 8}, 0)), kTruth, 1e-3);
}

// 52 times off by 1 %: the cost of reducing is off by up to 13 %, since sending and reducing bytes resemble each other.
TEST(AllReduceFitTest, FromNoisyTimesTheCostsComeBackRoughly) {
  for (int seed = 1; seed <= 5; ++seed)
    expect_near(fit_all_reduce(measure(kTruth, {2, 3, 4, 8}, 0.01, seed)), kTruth, 0.15);
}

// Noise of 3 % passes into the factors of the sizes: of 13 times the worst is off by less than three times as much.
TEST(AllReduceFitTest, FromTwoRanksAloneTheTimesComeBackThoughNotTheCosts) {
  const auto found = fit_all_reduce(measure(kTruth, {2}, 0.03));
  for (const auto& exact : measure(kTruth, {2}, 0)) {
    EXPECT_NEAR(all_reduce_seconds(found, 2, exact.bytes), exact.seconds, 0.09 * exact.seconds) << exact.bytes;
  }
}

// Above 2 MiB every byte takes twice as long; the sizes between those of the fit are predicted too.
TEST(AllReduceFitTest, WhatTheCostsCannotTellIsTakenUpBySize) {
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

TEST(AllReduceFitTest, TimesThatCannotBeAreRefused) {
  EXPECT_THROW(fit_all_reduce({}), ArgumentError);
  EXPECT_THROW(fit_all_reduce(std::vector<MeasuredAllReduce>{{2, 4, 0.0}}), ArgumentError);
  EXPECT_THROW(fit_all_reduce(std::vector<MeasuredAllReduce>{{1, 4, 1.0}}), ArgumentError);
}

}  // namespace
}  // namespace accel::sim
