#pragma once

#include <string_view>

#include "sim/report/timeline/timeline.hpp"

namespace accel::sim {

/// Reads a timeline that write_timeline has written in either format. Arrows and the nesting of slices are not read.
/// Throws ConfigError if the bytes are no such timeline. Thread rule: pure.
Timeline read_timeline(std::string_view bytes);

}  // namespace accel::sim
