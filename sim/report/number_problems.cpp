#include "sim/report/number_problems.hpp"

#include <fmt/format.h>

#include "reference/core/errors.hpp"

namespace accel::sim::report {

// The upper bound excludes infinity and values that would overflow an axis; the negated form also catches NaN.
void NumberProblems::expect_amount(double value, const std::string& name) {
  if (!(value >= 0 && value < 1e300))
    text_ += fmt::format("\n  {}: expected a finite number of 0 or more, got {}", name, value);
}

void NumberProblems::expect_ranks(int ranks, const std::string& name) {
  if (ranks < 1) text_ += fmt::format("\n  {}: expected 1 or more ranks, got {}", name, ranks);
}

void NumberProblems::raise() const {
  check_argument(text_.empty(), "report: these numbers cannot be drawn; correct them:{}", text_);
}

}  // namespace accel::sim::report
