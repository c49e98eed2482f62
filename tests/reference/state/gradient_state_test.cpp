// Tests of GradientState, with which loaders tell the optimizer and the gather functions that an epoch ends.
// Loaders may be nested, e.g. a validation inside a training epoch.
#include "reference/state/gradient_state.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

// Code that runs without a loader must step at every call.
TEST(GradientStateTest, WithoutALoaderNothingIsAtItsEnd) {
  const GradientState state;
  EXPECT_TRUE(state.sync_gradients);
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), -1);
}

TEST(GradientStateTest, TheInnermostLoaderCounts) {
  GradientState state;
  const ActiveLoader outer{.end_of_dataloader = true, .remainder = 3};
  const ActiveLoader inner{.end_of_dataloader = false, .remainder = 5};
  state.add(&outer);
  state.add(&inner);
  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 5);
  state.remove(&inner);
  EXPECT_TRUE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 3);
}

// A program may leave the outer loop first; the inner loader must still be the active one.
TEST(GradientStateTest, AnOuterLoaderMayEndFirst) {
  GradientState state;
  const ActiveLoader outer{.remainder = 3}, inner{.remainder = 5};
  state.add(&outer);
  state.add(&inner);
  state.remove(&outer);
  EXPECT_EQ(state.remainder(), 5);
  state.remove(&inner);
  state.remove(&inner);
  EXPECT_FALSE(state.in_dataloader());
}

}  // namespace
}  // namespace accel
