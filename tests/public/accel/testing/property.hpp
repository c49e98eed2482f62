#pragma once

/// Checks properties on generated cases with RapidCheck, under GoogleTest.
///
///     TEST(Mean, IsInsideTheRange) {
///       accel::testing::expect_property(200, [] {
///         const auto count = accel::testing::pick(1, 9);
///         RC_ASSERT(mean(count) >= 0);
///       });
///     }
///
/// Link accel::testing of find_package(accel COMPONENTS testing).
#include "tests/support/property.hpp"
