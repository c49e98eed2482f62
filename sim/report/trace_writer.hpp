#pragma once

#include <iosfwd>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/report/timeline_plan.hpp"

namespace accel::sim::report {

/// One end of arrow `id`, attached to a slice.
struct Mark {
  std::size_t slice = 0;
  Nanoseconds time = 0;
  std::int64_t id = 0;
  bool is_tail = false;
};

/// Writes the text of a Chrome trace: processes with their tracks, and on each track slices and arrow ends in the order
/// of time. Thread rule: one thread writes.
class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out);

  /// Starts a process of this name; the following tracks belong to it.
  void process(const std::string& name);
  /// Writes a track: the `slices` with the indices in `track`, and those of `marks` (sorted by time) that are on them.
  void track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
             const std::vector<Mark>& marks);
  /// Completes the text. Throws ConfigError if the stream could not be written.
  void finish();

 private:
  void process_metadata(const char* what, const std::string& value);
  void track_metadata(const char* what, const std::string& value);
  void slice(const Slice& slice);
  void mark(const Mark& mark, bool is_last);  // is_last: no slice follows on its track
  void event_of_process(char phase);
  void event_of_track(char phase);
  void time(const char* key, Nanoseconds value);
  const std::string& escaped(const std::string& text);  // as a JSON string without quotes
  void flush();

  std::ostream& out_;
  std::string text_;
  std::unordered_map<std::string, std::string> escaped_;  // cache: few names, each used many times
  bool is_first_ = true;
  int process_ = 0;
  int track_;
};

}  // namespace accel::sim::report
