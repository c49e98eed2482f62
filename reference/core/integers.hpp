#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace accel {

/// The smallest number of parts of `divisor` that hold `value`. Both positive.
constexpr std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

/// begin, begin + 1, ..., end - 1; empty where end is not behind begin.
inline std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> numbers(std::max<std::int64_t>(end - begin, 0));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

}  // namespace accel
