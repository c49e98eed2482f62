#include "reference/data/dispatched_batches.hpp"

#include <gtest/gtest.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

TEST(DispatchPlanTest, AFullStepIsCutEvenly) {
  const auto plan = plan_dispatch({.num_rows = 8, .num_ranks = 2});
  EXPECT_EQ(plan.rows_per_rank, 4);
  EXPECT_EQ(plan.num_padding, 0);
}

TEST(DispatchPlanTest, TheLastStepShrinksOnAllRanksAndIsFilledUp) {
  const auto plan = plan_dispatch({.num_rows = 5, .num_ranks = 2, .is_last = true});
  EXPECT_EQ(plan.rows_per_rank, 3);
  EXPECT_EQ(plan.num_padding, 1);
}

TEST(DispatchPlanTest, NoRankIsLeftWithoutARow) {
  const auto plan = plan_dispatch({.num_rows = 1, .num_ranks = 4, .is_last = true});
  EXPECT_EQ(plan.rows_per_rank, 1);
  EXPECT_EQ(plan.num_padding, 3);
}

TEST(DispatchPlanTest, AnEarlierStepThatDoesNotDivideIsAnArgumentError) {
  EXPECT_THROW(plan_dispatch({.num_rows = 5, .num_ranks = 2}), ArgumentError);
  EXPECT_THROW(plan_dispatch({.num_rows = 0, .num_ranks = 2, .is_last = true}), ArgumentError);
}

}  // namespace
}  // namespace accel
