// All tests of the reference share this main.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  // LibTorch's flight recorder exists once per process and writes its table of groups without a lock, so several
  // Gloo groups on threads of one process would race for it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
#ifdef ACCEL_SANITIZED
  return code;  // LeakSanitizer runs at exit
#else
  std::fflush(nullptr);
  _exit(code);  // LibTorch's destructors take 0.15 s
#endif
}
