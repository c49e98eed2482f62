#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/report/timeline.hpp"

/// Which slice of a rank stands on which track, and where the arrows go: a pure function of the slices.
/// Thread rule: any thread.
namespace accel::sim::report {

using Nanoseconds = std::int64_t;

struct Span {
  Nanoseconds begin = 0, end = 0;
};

/// The slices of one track, as indices into what was given; by begin, and what holds others before what it holds.
using Track = std::vector<std::size_t>;

/// Distributes spans over as few tracks as their order allows: on a track, of two slices either one ends before the
/// other begins, or, with `may_nest`, one lies within the other.
std::vector<Track> plan_tracks(const std::vector<Span>& spans, bool may_nest);

/// One end of an arrow. It stands on a slice, which a viewer finds by rank and time.
struct ArrowEnd {
  int rank = 0;
  std::size_t slice = 0;
  Nanoseconds time = 0;
};

/// From what the late rank did last before a wait ended, to the end of that wait.
struct Arrow {
  ArrowEnd from, to;
};

/// The arrows of one clock; `ranks[r]` are rank r's slices. A wait whose releasing rank had done nothing before has
/// none, and neither has one that is too short (of 2 ns) for the ends to be apart.
std::vector<Arrow> plan_arrows(const std::vector<const std::vector<Slice>*>& ranks);

/// Whether a slice belongs to the track of what is in flight, rather than to what the rank does.
inline bool is_in_flight(const Slice& slice) { return slice.kind == SliceKind::kCollective; }

Span span_of(const Slice& slice);

}  // namespace accel::sim::report
