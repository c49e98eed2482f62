// Numbers as the report shows them: three digits, a unit, and no surprising rounding at the borders between units.
#include "sim/report/quantity.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace accel::sim::report {
namespace {

// Rounding may carry into the next unit, which must then be used.
TEST(QuantityTest, TimesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(2.5e-9), "2.5 ns");
  EXPECT_EQ(seconds_text(0.0000123), "12.3 µs");
  EXPECT_EQ(seconds_text(0.0123456), "12.3 ms");
  EXPECT_EQ(seconds_text(0.9999), "1 s");  // not 1000 ms
  EXPECT_EQ(seconds_text(12345), "12,345 s");
}

// kB means 1,000 bytes, as in the rates of networks.
TEST(QuantityTest, BytesAreDecimal) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1 kB");
  EXPECT_EQ(bytes_text(407080), "407 kB");
  EXPECT_EQ(bytes_text(8.34e12), "8.34 TB");
}

TEST(QuantityTest, CountsAreGroupedByThousands) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(1234567), "1,234,567");
  EXPECT_EQ(count_text(-123456), "-123,456");
  EXPECT_EQ(plural(1, "rank"), "1 rank");
  EXPECT_EQ(plural(1024, "rank"), "1,024 ranks");
}

TEST(QuantityTest, NonFiniteNumbersHaveNames) {
  EXPECT_EQ(number_text(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "∞");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "−∞");
  EXPECT_EQ(number_text(0.35712), "0.357");
  EXPECT_EQ(number_text(3e38), "3e+38");
}

// "0 %" for 0.3 % would look like nothing.
TEST(QuantityTest, SmallSharesKeepADecimal) {
  EXPECT_EQ(percent_text(0), "0 %");
  EXPECT_EQ(percent_text(0.0312), "3.1 %");
  EXPECT_EQ(percent_text(0.0999), "10 %");
  EXPECT_EQ(percent_text(1), "100 %");
}

}  // namespace
}  // namespace accel::sim::report
