#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/profiler/profile_recorder.hpp"

namespace accel {

/// Sums over all events of one name and, if requested, the same input shapes. "Self" excludes callees.
struct KeyAverage {
  std::string key = {};
  std::vector<std::vector<std::int64_t>> input_shapes = {};
  std::int64_t count = 0;
  std::int64_t self_cpu_time_total_ns = 0, cpu_time_total_ns = 0, device_time_total_ns = 0;
  std::int64_t self_cpu_memory_usage = 0, cpu_memory_usage = 0;  ///< bytes
  std::int64_t flops = 0;
};

struct TableOptions {
  std::string sort_by = "self_cpu_time_total";  ///< or cpu_time_total, device_time_total, cpu_memory_usage,
                                                ///< self_cpu_memory_usage, flops, count
  std::size_t row_limit = 100;
};

/// Times by operator. Source: torch/autograd/profiler_util.py, EventList.key_averages and table.
class KeyAverages : public std::vector<KeyAverage> {
 public:
  /// Formats a table. Throws ArgumentError if `sort_by` is not a column.
  [[nodiscard]] std::string table(const TableOptions& options = {}) const;
};

KeyAverages key_averages(const std::vector<profiler::ProfileEvent>& events, bool group_by_input_shape = false);

}  // namespace accel
