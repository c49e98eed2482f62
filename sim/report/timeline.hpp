#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

/// What every rank of a simulated run did, and when: a picture in time.
///
///     Timeline timeline;
///     timeline.ranks.resize(2);
///     timeline.ranks[0].virtual_clock = {{.kind = SliceKind::kCompute, .name = "forward", .begin = 0, .end = 0.012}};
///     std::ofstream out("timeline.json");
///     write_timeline(out, timeline);
///
/// Thread rule: values; write_timeline from any thread.
namespace accel::sim {

enum class SliceKind { kCompute, kCollective, kWait, kFault };

/// Something that a rank did for a while. Times are seconds from the run's start.
struct Slice {
  SliceKind kind = SliceKind::kCompute;
  std::string name;
  double begin = 0, end = 0;
  std::string group = {};      ///< of a collective, or of the one that is waited for; else empty
  std::int64_t sequence = -1;  ///< its number in the group; -1 where there is none
  std::int64_t bytes = 0;
  int released_by = -1;  ///< of a wait: the rank whose arrival ended it; -1, or the waiting rank itself: no arrow
};

/// One rank's slices in any order, by either clock; either may be empty.
struct RankTimeline {
  std::vector<Slice> virtual_clock, wall_clock;
};

struct Timeline {
  std::vector<RankTimeline> ranks;
};

/// Writes a Chrome trace, which Perfetto and chrome://tracing open. The same timeline is the same bytes.
///
/// A clock that has slices is one process. In it a rank has a track for what it does (compute, waits, faults) and one
/// for its collectives in flight; what overlaps there without lying within another goes to further tracks of the same
/// kind. An arrow leads from what the late rank did last, at the end of each wait that its arrival ended, to what the
/// waiting rank did then. Throws ArgumentError that lists the slices that cannot be (a time that is no number or beyond
/// 292 years, an end before the begin, a rank that is not there), before anything is written; ConfigError if `out`
/// takes no more. Source: the format is "Trace Event Format" of the Chromium project; times are microseconds with three
/// decimals.
void write_timeline(std::ostream& out, const Timeline& timeline);

}  // namespace accel::sim
