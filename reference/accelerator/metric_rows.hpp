#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "reference/core/tree_rows.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/state/gradient_state.hpp"

namespace accel {

/// What gather_for_metrics keeps of the rows that it gathers on the active loader's step.
struct MetricRows {
  std::int64_t per_rank = 0;  // of a value that is cut
  std::vector<RowRange> kept = {};
  bool are_padded = false;  // the others are no duplicates, and a value of fewer rows is not padded
  /// Whether a value of so many rows can be cut; none: it has no dimension for samples.
  [[nodiscard]] bool fit(std::optional<std::int64_t> rows) const {
    return kept.empty() || rows == per_rank || (are_padded && rows.value_or(0) < per_rank);
  }
  static void check(bool fits, std::optional<std::int64_t> rows);
  [[nodiscard]] at::Tensor cut(const at::Tensor& gathered) const;
  template <typename T>
  [[nodiscard]] std::vector<T> cut(std::vector<T> gathered) const {
    if (kept.empty()) return gathered;
    std::vector<T> rows;
    for (const auto& range : kept) {
      rows.insert(rows.end(), std::make_move_iterator(gathered.begin() + range.begin),
                  std::make_move_iterator(gathered.begin() + range.end));
    }
    return rows;
  }
};

[[nodiscard]] MetricRows metric_rows(const GradientState& state, const DataParallel& data_parallel);
/// Of tensors. Collective on the last step of a loader that does not fill up: there they were padded to equal sizes.
[[nodiscard]] MetricRows tensor_metric_rows(const GradientState& state, const DataParallel& data_parallel,
                                            c10::Device device);
/// Samples of this rank's batch that are no duplicates; none outside a loop over a loader.
[[nodiscard]] std::optional<std::int64_t> num_real_rows(const GradientState& state, const DataParallel& data_parallel);

}  // namespace accel
