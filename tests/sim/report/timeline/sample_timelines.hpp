#pragma once

#include "sim/report/timeline/timeline.hpp"

namespace accel::testing {

/// Rank 1 computes longer, so rank 0 waits for it. Two buckets are in flight at the same time.
sim::Timeline two_ranks();

/// Draws slices on a coarse grid of times, so that they often touch, nest, overlap, are equal or empty, with odd names.
/// Only inside a property.
sim::Timeline any_timeline();

}  // namespace accel::testing
