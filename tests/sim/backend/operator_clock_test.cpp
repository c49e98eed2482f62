#include "sim/backend/operator_clock.hpp"

#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

namespace accel::testing::operator_clock_test {
namespace {

using Operator = at::Tensor (*)(const at::Tensor&);

// 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit.
double price(std::string_view name, double, double) {
  return name == "aten::cos" ? 0.1 : name == "aten::exp" ? 0.2 : name == "aten::sin" ? 0.3 : 0;
}

double seconds_of(const std::vector<Operator>& operators) {
  const auto x = at::ones({2});
  double total = 0;
  const sim::OperatorClock clock([&](double seconds) { total += seconds; }, price);
  for (const auto op : operators) op(x);
  return total;
}

TEST(OperatorClockTest, TheOrderOfOperatorsDoesNotMatter) {
  const Operator cos = at::cos, exp = at::exp, sin = at::sin;
  const double seconds = seconds_of({cos, exp, sin});
  EXPECT_NEAR(seconds, 0.6, 1e-12);
  EXPECT_EQ(seconds, seconds_of({sin, exp, cos}));
}

}  // namespace
}  // namespace accel::testing::operator_clock_test
