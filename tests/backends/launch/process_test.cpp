// Tests of handing file descriptors to a child process under chosen numbers, as the launcher does for its channels.
#include "backends/launch/process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::launcher {
namespace {

// What a shell that writes to descriptor 9 leaves in a file that this process has open as `ours`.
std::string written_through(int ours) {
  const int file = memfd_create("process_test", MFD_CLOEXEC);
  if (file != ours) dup3(file, ours, O_CLOEXEC);
  const pid_t pid = start_process({.command = {"/bin/sh", "-c", "echo text >&9"}, .descriptors = {{ours, 9}}});
  int status = 0;
  waitpid(pid, &status, 0);
  char text[16] = {};
  EXPECT_GE(pread(ours, text, sizeof(text) - 1, 0), 0);
  close(ours);
  if (file != ours) close(file);
  return exit_code_of_status(status) == 0 ? text : "";
}

// All other descriptors are closed in the child.
TEST(ProcessTest, ADescriptorReachesTheChildUnderItsNewNumber) { EXPECT_EQ(written_through(8), "text\n"); }

// dup2() of a number to itself does nothing, and would leave the close-on-exec flag set.
TEST(ProcessTest, ADescriptorWithTheSameNumberInTheChildReachesItToo) { EXPECT_EQ(written_through(9), "text\n"); }

}  // namespace
}  // namespace accel::launcher
