#pragma once

#include <vector>

namespace accel::bench {

/// Returns the middle value, or the mean of the two middle values. `values` must not be empty.
double median(std::vector<double> values);

}  // namespace accel::bench
