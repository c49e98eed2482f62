#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // LibTorch's flight recorder is one per process and not made for several Gloo groups on threads: its table of groups
  // is written without a lock.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
