#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "reference/data/loader.hpp"
#include "reference/state/gradient_state.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel {

/// The rows that gather_for_metrics keeps of a gathered value, for the current step of the active loader.
struct MetricRows {
  std::int64_t per_rank = 0;        // rows that each rank contributes to a value that is cut
  std::vector<RowRange> kept = {};  // of the gathered value; empty: keep all rows
  bool are_padded = false;          // dropped rows are padding, not duplicates; a value with fewer rows has no padding
  /// Whether a value with this many rows per rank can be cut. `rows` is empty for a value without a sample dimension.
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
/// Returns the rows to keep of tensors. Collective on the last step of a loader without even_batches, where
/// pad_across_processes may have padded the tensors to equal sizes.
[[nodiscard]] MetricRows tensor_metric_rows(const GradientState& state, const DataParallel& data_parallel);
/// Number of samples of this rank's batch that are not duplicates; empty outside a loop over a loader.
[[nodiscard]] std::optional<std::int64_t> num_real_rows(const GradientState& state, const DataParallel& data_parallel);

}  // namespace accel
