#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "sim/report/timeline/timeline.hpp"

namespace accel::sim::report {

/// A slice as a trace holds it.
struct TraceSlice {
  std::string process, track;  ///< their names
  std::string category;        ///< empty: none
  std::string call;            ///< "GROUP #SEQUENCE"; empty: none
  std::string name;
  double begin = 0, end = 0;  ///< in seconds
  std::int64_t bytes = 0;
};

using TakeSlice = std::function<void(const TraceSlice&)>;

/// Hand each slice of a trace to `take`. Throw std::exception if it is no trace of this format. Thread rule: pure.
void read_json_trace(std::string_view text, const TakeSlice& take);
void read_track_events(std::string_view bytes, const TakeSlice& take);

}  // namespace accel::sim::report
