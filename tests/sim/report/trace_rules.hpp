#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/report/timeline.hpp"

namespace accel::testing {

/// The trace's text. Throws what write_timeline throws.
std::string trace_text(const sim::Timeline& timeline);

/// What the text breaks of the rules of Chrome's trace format, one line each; empty if it is a well-formed trace:
/// every event has a phase, a process, a name and, but for those of a process, a track, and its times are numbers that
/// are not negative; processes and tracks are named once, before their events; on a track events are in the order of
/// time, and of two slices either one ends before the other begins or one lies within the other; every arrow has a tail
/// and a head, each on a slice, the head after the tail, and bound to that slice if none follows on its track.
std::vector<std::string> broken_rules(const std::string& text);

/// The events of one phase ("X", "s", "f", "M").
std::vector<nlohmann::json> events_of(const std::string& text, const std::string& phase);

}  // namespace accel::testing
