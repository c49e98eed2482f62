#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/report/timeline/timeline.hpp"

/// Plans which slice of a rank goes on which track, and where the arrows go: a pure function of the slices. Thread
/// rule: any thread.
namespace accel::sim::report {

using Nanoseconds = std::int64_t;

struct Span {
  Nanoseconds begin = 0, end = 0;
};

/// The slices of one track, as indices into the input; sorted by begin, outer slices before the slices inside them.
using Track = std::vector<std::size_t>;

/// Distributes spans over as few tracks as possible in their order: on one track, of two slices either one ends before
/// the other begins or, with `may_nest`, one lies within the other.
std::vector<Track> plan_tracks(const std::vector<Span>& spans, bool may_nest);

/// One end of an arrow. It is attached to a slice, which a viewer finds by rank and time.
struct ArrowEnd {
  int rank = 0;
  std::size_t slice = 0;
  Nanoseconds time = 0;
};

/// An arrow from what the late rank did last before a wait ended to the end of that wait.
struct Arrow {
  ArrowEnd from, to;
};

/// Returns the arrows of one clock; `ranks[r]` are rank r's slices. A wait gets no arrow if the releasing rank did
/// nothing before, or if the wait is too short (2 ns) to separate the ends.
std::vector<Arrow> plan_arrows(const std::vector<const std::vector<Slice>*>& ranks);

/// One end of arrow `id`, attached to a slice.
struct Mark {
  std::size_t slice = 0;
  Nanoseconds time = 0;
  std::int64_t id = 0;
  bool is_tail = false;
};

enum class TrackEventKind { kBegin, kEnd, kMark };

/// What happens on a track at one time.
struct TrackEvent {
  TrackEventKind kind = TrackEventKind::kBegin;
  std::size_t index = 0;  ///< of the slice that begins or ends, or of the mark
  Nanoseconds time = 0;
};

/// Returns the begin and end of the `slices` with the indices in `track`, and those of `marks` (sorted by time) that
/// are on them, in the order of time. A slice ends after the slices inside it and before the next one begins.
std::vector<TrackEvent> plan_events(const std::vector<Slice>& slices, const Track& track,
                                    const std::vector<Mark>& marks);

/// Returns whether a slice goes on the track of collectives in flight instead of the track of activities.
inline bool is_in_flight(const Slice& slice) { return slice.kind == SliceKind::kCollective; }

Span span_of(const Slice& slice);

}  // namespace accel::sim::report
