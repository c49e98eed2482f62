#pragma once

#include <algorithm>
#include <vector>

namespace accel::bench {

/// Of an odd number of values the middle one, of an even number the upper of the two; `values` is not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace accel::bench
