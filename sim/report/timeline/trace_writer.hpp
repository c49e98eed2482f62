#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "sim/report/timeline/timeline_plan.hpp"

namespace accel::sim::report {

/// Writes a trace in one format: processes with their tracks, and on each track slices and arrow ends in the order of
/// time. Thread rule: one thread writes.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  /// Starts a process of this name; the following tracks belong to it.
  virtual void process(const std::string& name) = 0;
  /// Writes a track: the `slices` with the indices in `track`, and those of `marks` (sorted by time) that are on them.
  virtual void track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
                     const std::vector<Mark>& marks) = 0;
  /// Writes what is left in memory.
  virtual void finish() = 0;
};

/// Chrome's JSON and Perfetto's protobuf: see TimelineFormat.
std::unique_ptr<TraceWriter> make_json_writer(std::ostream& out);
std::unique_ptr<TraceWriter> make_track_event_writer(std::ostream& out);

constexpr std::size_t kFlushBytes = 1 << 20;
/// Viewers treat a thread with its process's number as the main thread and thread 0 as idle, so track numbers start
/// above the process numbers.
constexpr int kTracksBefore = 10;

/// The name of the two ends of an arrow, and of the annotation that holds the late rank.
constexpr const char* kLate = "late";

/// The category of a slice; null if the track already implies it.
inline const char* category_of(SliceKind kind) {
  return kind == SliceKind::kWait ? "wait" : kind == SliceKind::kFault ? "fault" : nullptr;
}

}  // namespace accel::sim::report
