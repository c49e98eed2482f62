// The plan of dispatched batches: how rank 0 cuts a step into rows for all ranks.
#include "reference/data/dispatched_batches.hpp"

#include <gtest/gtest.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The simplest case: nothing to fill up.
TEST(DispatchPlanTest, AFullStepIsCutEvenly) {
  const auto plan = plan_dispatch({.num_rows = 8, .num_ranks = 2});
  EXPECT_EQ(plan.rows_per_rank, 4);
  EXPECT_EQ(plan.num_padding, 0);
}

// Five rows on two ranks become 3 + 3 with one duplicate, as in accelerate/data_loader.py, DataLoaderDispatcher.
TEST(DispatchPlanTest, TheLastStepShrinksOnAllRanksAndIsFilledUp) {
  const auto plan = plan_dispatch({.num_rows = 5, .num_ranks = 2, .is_last = true});
  EXPECT_EQ(plan.rows_per_rank, 3);
  EXPECT_EQ(plan.num_padding, 1);
}

// A rank without a row could not run its forward, and its collectives would be missing.
TEST(DispatchPlanTest, NoRankIsLeftWithoutARow) {
  const auto plan = plan_dispatch({.num_rows = 1, .num_ranks = 4, .is_last = true});
  EXPECT_EQ(plan.rows_per_rank, 1);
  EXPECT_EQ(plan.num_padding, 3);
}

// Only the last step may be short; an earlier one would indicate a wrong batch size.
TEST(DispatchPlanTest, AnEarlierStepThatDoesNotDivideIsAnArgumentError) {
  EXPECT_THROW(plan_dispatch({.num_rows = 5, .num_ranks = 2}), ArgumentError);
  EXPECT_THROW(plan_dispatch({.num_rows = 0, .num_ranks = 2, .is_last = true}), ArgumentError);
}

}  // namespace
}  // namespace accel
