#include "reference/state/gradient_state.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

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
