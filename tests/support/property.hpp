#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <sstream>

#include "tests/support/budget.hpp"

namespace accel::testing {

/// Checks a RapidCheck property on `cases` generated cases (ten times as many under `--long`), from a fixed seed, so that
/// a failure is the same everywhere; the message holds the shrunk counterexample.
template <typename Property>
void expect_property(int cases, Property&& property) {
  rc::detail::TestParams params;
  params.seed = 20261121;
  params.maxSuccess = num_cases(cases);
  params.maxSize = 100;
  const auto result = rc::detail::checkTestable(std::forward<Property>(property), rc::detail::TestMetadata{}, params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
}

}  // namespace accel::testing
