#pragma once

/// Generates data loaders: lengths, batch sizes, numbers of ranks, and the options that decide which rank reads what.
///
///     accel::testing::expect_property(100, [] {
///       const auto one = accel::testing::loader_cases::make_case();
///       ...
///     });
///
/// Link accel::testing of find_package(accel COMPONENTS testing).
#include "properties/gen/loader_case.hpp"
