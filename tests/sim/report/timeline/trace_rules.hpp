#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/report/timeline/timeline.hpp"

namespace accel::testing {

/// Returns the trace's text. Throws whatever write_timeline throws.
std::string trace_text(const sim::Timeline& timeline, sim::TimelineFormat format = sim::TimelineFormat::kJson);

/// Returns the rules of Chrome's trace format that the text breaks, one line each, or nothing for a well-formed
/// trace. Every event has a phase, a process, a name and, except for those of a process, a track; its times are
/// non-negative numbers. Processes and tracks are named once, before their events. On a track events are in the
/// order of time, and of two slices one ends before the other begins or lies within it. Every arrow has a tail and
/// a head, each on a slice, with the head after the tail, and bound to that slice if none follows on its track.
std::vector<std::string> broken_rules(const std::string& text);

/// Returns the events of one phase ("X", "s", "f", "M").
std::vector<nlohmann::json> events_of(const std::string& text, const std::string& phase);

}  // namespace accel::testing
