#pragma once

#include <cstdint>

#include "properties/gen/loader_case.hpp"
#include "tests/support/property.hpp"

/// Sizes of generated loaders of a property. distribution_laws.cpp checks the floors.
namespace accel::testing {

/// Returns 1 to `most` ranks, see draw_ranks.
inline int pick_ranks(int most) {
  return loader_cases::draw_ranks([](auto begin, auto end) { return pick(begin, end); }, most);
}

/// Returns a length, see draw_length.
inline std::int64_t pick_length(std::int64_t step_size, bool drop_last) {
  return loader_cases::draw_length([](auto begin, auto end) { return pick(begin, end); }, step_size, drop_last);
}

}  // namespace accel::testing
