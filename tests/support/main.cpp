// All tests of the reference share this main.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "reference/core/exit_point.hpp"

int main(int argc, char** argv) {
  // LibTorch's flight recorder exists once per process and writes its table of groups without a lock, so several
  // Gloo groups on threads of one process would race for it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::testing::InitGoogleTest(&argc, argv);
  // A token begins with the name of its test (tests/support/replay_token.hpp); the other tests do not run.
  if (const char* token = std::getenv("ACCEL_PROPERTY_REPLAY")) {
    const std::string property = token;
    GTEST_FLAG_SET(filter, property.substr(0, property.find_first_of(":#")));
  }
  accel::end_process(RUN_ALL_TESTS());
}
