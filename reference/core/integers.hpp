#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace accel {

/// Returns value / divisor, rounded up. `value` must not be negative; `divisor` must be positive.
constexpr std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

/// Returns begin, begin + 1, ..., end - 1; empty if end <= begin.
inline std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> numbers(std::max<std::int64_t>(end - begin, 0));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

}  // namespace accel
