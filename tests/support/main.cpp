// All tests of the reference share this main.
#include <gtest/gtest.h>

#include "reference/rank_local/exit_point.hpp"
#include "tests/support/replay_filter.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  accel::testing::run_only_replayed_test();
  accel::end_process(RUN_ALL_TESTS());
}
