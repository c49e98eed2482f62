#include "reference/metrics/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace accel::testing::exact_sum_test {
namespace {

using metrics::ExactSum;

ExactSum sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return sum;
}

TEST(ExactSumTest, TermsThatCancelLeaveTheRest) {
  EXPECT_EQ(sum_of({1e100, 1, -1e100}).value(), 1);
  EXPECT_EQ(sum_of({0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}).value(), 1);
  EXPECT_EQ(sum_of({}).value(), 0);
  // Half a bit, and a little more: rounded up, not to even.
  EXPECT_EQ(sum_of({1, 0x1p-53, 0x1p-106}).value(), 1 + 0x1p-52);
  EXPECT_EQ(sum_of({1, 0x1p-53, -0x1p-106}).value(), 1);
}

TEST(ExactSumTest, InfinitiesAndNanAreThoseOfAnOrdinarySum) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, kInfinity, 2}).value(), kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity}).value()));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1}).value()));
}

// Of numbers of all magnitudes, divided among ranks in any way and merged in any order.
TEST(ExactSumTest, NeitherOrderNorDivisionMatters) {
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-300, 300), part(0, 4);
  std::uniform_real_distribution<double> fraction(-1, 1);
  for (int time = 0; time < 200; ++time) {
    std::vector<double> terms(static_cast<std::size_t>(part(random) * 20));
    for (auto& term : terms) term = std::ldexp(fraction(random), exponent(random));
    const double expected = sum_of(terms).value();
    std::shuffle(terms.begin(), terms.end(), random);
    std::vector<ExactSum> parts(5);
    for (const double term : terms) parts[part(random)].add(term);
    ExactSum merged;
    for (const auto& one : parts) merged.add(ExactSum::of_value(one.to_value()));
    EXPECT_EQ(merged.value(), expected) << "seed " << seed;
    terms.push_back(-expected);
    // What is left is less than half a unit in the last place of the sum.
    EXPECT_LE(std::abs(sum_of(terms).value()), std::abs(std::nextafter(expected, 1e308) - expected)) << "seed " << seed;
  }
}

TEST(ExactSumTest, ProductsOfSumsAreExact) {
  ExactSum product;
  product.add_product(sum_of({0x1p60, 1}), sum_of({0x1p60, -1}));  // 2^120 - 1
  product.add(-0x1p120);
  EXPECT_EQ(product.value(), -1);
  product.add_product(sum_of({3}), sum_of({5}), /*is_negative=*/true);
  EXPECT_EQ(product.value(), -16);
}

}  // namespace
}  // namespace accel::testing::exact_sum_test
