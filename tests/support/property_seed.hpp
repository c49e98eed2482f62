#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accel::testing {

/// The seeds with which `expect_property` draws its cases, see property.hpp. Throws std::invalid_argument if
/// ACCEL_PROPERTY_SEED or ACCEL_FRESH_SEED is not a number.
std::vector<std::uint64_t> property_seeds();

/// The setting of the environment that repeats a run, such as "ACCEL_FRESH_SEED=7".
std::string seed_setting();

}  // namespace accel::testing
