#pragma once

#include <algorithm>
#include <vector>

namespace accel::bench {

/// Returns the middle value, or the upper of the two middle values for an even number. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace accel::bench
