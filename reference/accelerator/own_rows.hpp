#pragma once

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/accelerator/metric_rows.hpp"
#include "reference/core/errors.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel::metrics {

/// Returns the rows of this rank that are no duplicates, which fill the last step of the active loader: for metrics
/// that are reduced with `over_ranks`, where gather_for_metrics would send all rows to all ranks. Outside a loop over a
/// prepared loader: all rows. Not collective. On a step with duplicates, throws ArgumentError for values that do not
/// have one row per sample.
template <RowTree T>
[[nodiscard]] T own_rows(const AcceleratorBase& accelerator, const T& tree) {
  const auto& state = accelerator.gradient_state();
  const auto real =
      num_real_rows(state, {.size = accelerator.data_parallel_size(), .rank = accelerator.data_parallel_rank()});
  if (!real || real == state.num_rows()) return tree;
  const auto rows = num_rows(tree);
  check_argument(
      rows == state.num_rows(),
      "own_rows: the last step contains duplicates, and a value with {} rows cannot be cut, since it does not "
      "have one row for each of the {} samples of the batch",
      rows ? fmt::format("{}", *rows) : "no", state.num_rows().value_or(0));
  return slice_rows(tree, {.begin = 0, .end = *real});
}

}  // namespace accel::metrics
