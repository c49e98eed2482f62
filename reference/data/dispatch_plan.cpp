#include "reference/data/dispatch_plan.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel {

DispatchPlan plan_dispatch(DispatchStep step) {
  check_argument(step.num_rows >= 1, "dispatch_batches: a step without rows; expected at least one");
  check_argument(step.is_last || step.num_rows % step.num_ranks == 0,
                 "dispatch_batches: a step of {} rows does not divide by {} ranks, and is not the last; keep batches "
                 "equally long, or set "
                 "dispatch_batches: false",
                 step.num_rows, step.num_ranks);
  const auto rows_per_rank = (std::max(step.num_rows, step.full_rows) + step.num_ranks - 1) / step.num_ranks;
  return {.rows_per_rank = rows_per_rank, .num_padding = rows_per_rank * step.num_ranks - step.num_rows};
}

}  // namespace accel
