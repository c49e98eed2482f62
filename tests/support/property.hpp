#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <sstream>

#include "tests/support/budget.hpp"

namespace accel::testing {

namespace detail {

template <typename Property>
rc::detail::TestResult check(int cases, bool shrinks, Property&& property) {
  rc::detail::TestParams params;
  params.seed = 20261121;
  params.maxSuccess = cases;
  params.maxSize = 100;
  params.disableShrinking = !shrinks;
  return rc::detail::checkTestable(std::forward<Property>(property), rc::detail::TestMetadata{}, params);
}

}  // namespace detail

/// Returns a number in [begin, end), uniformly distributed. RapidCheck's own ranges grow with the number of the
/// case.
template <typename T>
T pick(T begin, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(begin, end));
}

/// Checks a RapidCheck property on `cases` generated cases (ten times as many under `--long`). The seed is fixed,
/// so a failure is the same everywhere. The message holds the shrunk counterexample.
template <typename Property>
void expect_property(int cases, Property&& property) {
  const auto result = detail::check(num_cases(cases), /*shrinks=*/true, std::forward<Property>(property));
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
}

/// Checks that at least one case fails for a property with a planted bug.
template <typename Property>
void expect_property_fails(const std::string& bug, int cases, Property&& property) {
  const auto result = detail::check(cases, /*shrinks=*/false, std::forward<Property>(property));
  EXPECT_TRUE(result.template is<rc::detail::FailureResult>()) << "not caught: " << bug;
}

}  // namespace accel::testing
