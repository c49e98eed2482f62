#pragma once

#include <cstdint>

namespace accel {

/// How one step that rank 0 has read is cut over the ranks: rank r takes rows [r * rows_per_rank, (r + 1) *
/// rows_per_rank).
struct DispatchPlan {
  std::int64_t rows_per_rank = 0;
  std::int64_t num_padding = 0;  ///< rows to append first, from the start of the epoch
};

struct DispatchStep {
  std::int64_t num_rows = 0;  ///< rows that rank 0 has read
  int num_ranks = 1;
  bool is_last = false;
  std::int64_t full_rows = 0;  ///< to which the last step is filled up too; 0: to a multiple of the number of ranks
};

/// Unless it is to be a full one, the last step shrinks on all ranks alike, and is filled up to a multiple of their
/// number: no rank is left without a row. Throws ArgumentError if an earlier step does not divide by the number of
/// ranks. Source: accelerate/data_loader.py, DataLoaderDispatcher.__iter__.
DispatchPlan plan_dispatch(DispatchStep step);

}  // namespace accel
