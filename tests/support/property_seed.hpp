#pragma once

#include <cstdint>

namespace accel::testing {

/// The seed with which `expect_property` draws its cases, see property.hpp. Throws std::invalid_argument if
/// ACCEL_PROPERTY_SEED is not a number.
std::uint64_t property_seed();

}  // namespace accel::testing
