#pragma once

#include <string>

#include "sim/report/timeline/timeline.hpp"

namespace accel::programs {

struct TimelineComparison {
  std::string text;        ///< both timelines side by side, and the first call that differs; ends in a newline
  bool are_equal = false;  ///< the ranks make the same calls
};

/// Sets two timelines side by side: how long they take, where the ranks' time goes, and for each operation how long its
/// calls take. Of a timeline with both clocks, the virtual one counts. Thread rule: pure.
TimelineComparison compare_timelines(const sim::Timeline& a, const sim::Timeline& b);

}  // namespace accel::programs
