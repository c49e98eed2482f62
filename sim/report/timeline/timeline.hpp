#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

/// A record of what every rank of a simulated run did and when, written as a trace for Perfetto.
///
///     Timeline timeline;
///     timeline.ranks.resize(2);
///     timeline.ranks[0].virtual_clock = {{.kind = SliceKind::kCompute, .name = "forward", .begin = 0, .end = 0.012}};
///     std::ofstream out("timeline.pftrace");
///     write_timeline(out, timeline, TimelineFormat::kTrackEvent);
///
/// Thread rule: values; write_timeline from any thread.
namespace accel::sim {

enum class SliceKind { kCompute, kCollective, kWait, kFault };

/// An activity of a rank. Times are seconds from the run's start.
struct Slice {
  SliceKind kind = SliceKind::kCompute;
  std::string name;
  double begin = 0, end = 0;
  std::string group = {};      ///< of the collective, or of the awaited one; else empty
  std::int64_t sequence = -1;  ///< its number in the group; -1: none
  std::int64_t bytes = 0;
  int released_by = -1;  ///< for a wait: the rank whose arrival ended it; -1 or the waiting rank: no arrow
};

/// One rank's slices in any order, on both clocks; either may be empty.
struct RankTimeline {
  std::vector<Slice> virtual_clock, wall_clock;
};

struct Timeline {
  std::vector<RankTimeline> ranks;
};

/// Both formats hold the same processes, tracks, slices and arrows.
enum class TimelineFormat {
  kJson,       ///< Chrome's "Trace Event Format": Perfetto and chrome://tracing open it; times in microseconds
  kTrackEvent  ///< Perfetto's protobuf trace of TrackEvents; times in nanoseconds
};

/// Returns kJson for a file name that ends in ".json", else kTrackEvent.
TimelineFormat timeline_format_of(const std::string& file);

/// Writes a trace. Equal timelines give equal bytes.
///
/// Each clock with slices is one process. In it a rank has a track for its activities (compute, waits, faults) and one
/// for its collectives in flight; slices that overlap there without nesting go to further tracks of the same kind. For
/// each wait that a late rank ended, an arrow leads from what the late rank did last to what the waiting rank did then.
/// Throws ArgumentError that lists the invalid slices (a time that is not a number or beyond 292 years, an end before
/// the begin, an unknown rank) before anything is written; ConfigError if `out` cannot be written.
void write_timeline(std::ostream& out, const Timeline& timeline, TimelineFormat format = TimelineFormat::kJson);

}  // namespace accel::sim
