// All tests of the reference share this main.
#include <gtest/gtest.h>

#include <cstdlib>

#include "reference/core/exit_point.hpp"
#include "tests/support/replay_filter.hpp"

int main(int argc, char** argv) {
  // LibTorch's flight recorder exists once per process and writes its table of groups without a lock, so several
  // Gloo groups on threads of one process would race for it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::testing::InitGoogleTest(&argc, argv);
  accel::testing::run_only_replayed_test();
  accel::end_process(RUN_ALL_TESTS());
}
