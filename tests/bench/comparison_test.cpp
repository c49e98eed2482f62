#include "bench/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace accel::bench {
namespace {

using ::testing::HasSubstr;

// Blocks of two samples per side with a noise of 1 % each, on a machine whose speed changes by up to 30 % between them.
RowSamples row(const std::string& name, double factor, unsigned seed, int blocks = 8) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(1, 0.01);
  std::uniform_real_distribution<double> drift(1, 1.3);
  RowSamples samples{.name = name};
  for (int block = 0; block < blocks; ++block) {
    const double level = 0.002 * drift(random);
    samples.blocks.push_back({.before = {level * noise(random), level * noise(random)},
                              .after = {level * factor * noise(random), level * factor * noise(random)}});
  }
  return samples;
}

std::vector<RowSamples> ten_equal_rows(unsigned seed) {
  std::vector<RowSamples> rows;
  for (int number = 0; number < 10; ++number) rows.push_back(row("equal", 1, seed + number));
  return rows;
}

TEST(ComparisonTest, ASlowdownOfFivePercentIsARegression) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    auto rows = ten_equal_rows(1000 * seed);
    rows.push_back(row("slow", 1.05, seed));
    const auto compared = compare(rows);
    EXPECT_EQ(compared.back().verdict, Verdict::kSlower) << seed << "\n" << table(compared);
    EXPECT_TRUE(has_regression(compared));
  }
}

TEST(ComparisonTest, EqualRowsAreNoRegression) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const auto compared = compare(ten_equal_rows(1000 * seed));
    EXPECT_FALSE(has_regression(compared)) << seed << "\n" << table(compared);
  }
}

TEST(ComparisonTest, ASpeedupIsNoRegression) {
  const auto compared = compare({row("fast", 0.9, 1)});
  EXPECT_EQ(compared[0].verdict, Verdict::kFaster);
  EXPECT_FALSE(has_regression(compared));
}

// Memory and file sizes have no noise, so that the test rejects equality for a single byte.
TEST(ComparisonTest, ASignificantDifferenceBelowTheNoiseThresholdIsNoRegression) {
  const Block block{.before = {1000, 1000}, .after = {1010, 1010}};
  const auto compared = compare({{.name = "size", .unit = "bytes", .blocks = {8, block}}});
  EXPECT_LT(compared[0].p, kLevel);
  EXPECT_DOUBLE_EQ(compared[0].ratio, 1.01);
  EXPECT_EQ(compared[0].verdict, Verdict::kEqual);
}

TEST(ComparisonTest, ALargeRatioWithoutSignificanceIsNoRegression) {
  const auto compared = compare({{.name = "noisy", .blocks = {{.before = {1, 9}, .after = {2, 8}}}}});
  EXPECT_EQ(compared[0].verdict, Verdict::kEqual);
  EXPECT_EQ(compare({{.name = "two", .blocks = {{.before = {1, 1.1}, .after = {2, 2.1}}}}})[0].verdict,
            Verdict::kEqual);
}

// Alone, the row has p = 2 / 6^3; among ten rows, ten times as much.
TEST(ComparisonTest, PIsCorrectedForTheNumberOfRows) {
  const Block separate{.before = {1, 1.1}, .after = {2, 2.1}}, mixed{.before = {1, 2.1}, .after = {2, 1.1}};
  const RowSamples slow{.name = "slow", .blocks = {separate, separate, separate}};
  std::vector<RowSamples> rows(10, {.name = "mixed", .blocks = {mixed, mixed, mixed}});
  rows[3] = slow;
  EXPECT_NEAR(compare({slow})[0].p, 2.0 / 216, 1e-12);
  EXPECT_NEAR(compare(rows)[3].p, 20.0 / 216, 1e-12);
}

TEST(ComparisonTest, TheTableNamesMediansRatioAndVerdict) {
  const Block block{.before = {0.001, 0.001}, .after = {0.002, 0.0021}};
  const auto text = table(compare({{.name = "step/mlp", .blocks = {8, block}}}));
  EXPECT_THAT(text, HasSubstr("step/mlp         1 ms      2.05 ms   2.050"));
  EXPECT_THAT(text, HasSubstr("slower"));
}

TEST(ComparisonTest, ValuesHaveAFittingUnit) {
  EXPECT_EQ(with_unit(1.5, "s"), "1.5 s");
  EXPECT_EQ(with_unit(0.00025, "s"), "250 us");
  EXPECT_EQ(with_unit(0, "s"), "0 s");
  EXPECT_EQ(with_unit(640'000, "bytes"), "640 kB");
}

}  // namespace
}  // namespace accel::bench
