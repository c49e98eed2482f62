#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace accel::testing {

/// Decodes a trace of Perfetto's TrackEvents as the events of Chrome's format, with times in nanoseconds. Independent
/// of the writer and of its protobuf library. Throws std::runtime_error for a trace that Perfetto would misread: an
/// event before its track or its interned names, times of a track that decrease, a slice that does not end, or ends
/// twice.
std::vector<nlohmann::json> read_track_events(const std::string& bytes);

/// Converts a trace in Chrome's format to the same form: times in nanoseconds, and arrows without the slice that their
/// heads are bound to.
std::vector<nlohmann::json> events_in_nanoseconds(const std::string& text);

}  // namespace accel::testing
