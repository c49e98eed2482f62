#pragma once

#include <iosfwd>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/report/timeline_plan.hpp"

namespace accel::sim::report {

/// One end of arrow `id`, on a slice.
struct Mark {
  std::size_t slice = 0;
  Nanoseconds time = 0;
  std::int64_t id = 0;
  bool is_tail = false;
};

/// The text of a Chrome trace: processes, in each its tracks, on a track slices and arrows' ends in the order of time.
/// Thread rule: none; one thread writes.
class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out);

  /// Tracks that follow belong to a process of this name.
  void process(const std::string& name);
  /// Writes a track: `slices` at the places of `track`, and of `marks`, sorted by time, those on them.
  void track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
             const std::vector<Mark>& marks);
  /// Ends the text. Throws ConfigError if the stream did not take it.
  void finish();

 private:
  void process_metadata(const char* what, const std::string& value);
  void track_metadata(const char* what, const std::string& value);
  void slice(const Slice& slice);
  void mark(const Mark& mark, bool is_last);  // whether no slice follows on its track
  void event_of_process(char phase);
  void event_of_track(char phase);
  void time(const char* key, Nanoseconds value);
  const std::string& escaped(const std::string& text);  // as a JSON string is, without its quotes
  void flush();

  std::ostream& out_;
  std::string text_;
  std::unordered_map<std::string, std::string> escaped_;  // few names, each many times
  bool is_first_ = true;
  int process_ = 0;
  int track_;
};

}  // namespace accel::sim::report
