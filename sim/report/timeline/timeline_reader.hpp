#pragma once

#include <string_view>

#include "sim/report/timeline/timeline.hpp"

namespace accel::sim {

/// Reads a timeline that write_timeline has written in TimelineFormat::kJson. Arrows and the nesting of slices are not
/// read. Throws ConfigError if the text is no such timeline. Thread rule: pure.
Timeline read_timeline(std::string_view json);

}  // namespace accel::sim
