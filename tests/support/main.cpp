#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  // LibTorch's flight recorder is one per process and not made for several Gloo groups on threads: its table of groups
  // is written without a lock.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
#ifdef ACCEL_SANITIZED
  return code;  // and look for leaks
#else
  std::fflush(nullptr);
  _exit(code);  // LibTorch's destructors take 0.15 s
#endif
}
