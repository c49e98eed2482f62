#pragma once

#include <cstdint>

#include "tests/support/property.hpp"

/// Sizes of generated loaders. Uniform sizes would give many cases that prove little: a single rank never pads, and an
/// empty epoch has nothing to compare. distribution_laws.cpp checks the floors.
namespace accel::testing {

/// Returns 1 to `most` ranks; a single rank in one of twelve cases.
inline int pick_ranks(int most) { return pick(0, 12) == 0 ? 1 : pick(2, most + 1); }

/// Returns a length of up to three steps and one sample more, so that all kinds of tails are frequent. `step_size`:
/// samples of one step over all ranks. One epoch in a hundred is empty; with `drop_last` a few more have no batch.
inline std::int64_t pick_length(std::int64_t step_size, bool drop_last) {
  if (one_in(100)) return 0;
  return pick<std::int64_t>(drop_last && !one_in(8) ? step_size : 1, 3 * step_size + 2);
}

}  // namespace accel::testing
