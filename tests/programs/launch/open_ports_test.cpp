// LibTorch's store, Gloo and the launcher's protocol have no authentication against other machines, so a job on one
// machine must listen on no address that others reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::open_ports_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class OpenPortsTest : public LaunchFixture {
 protected:
  // Runs a command and returns the addresses on which its processes have listened.
  [[nodiscard]] Words listening_addresses(const Words& command) const {
    const auto addresses = folder_.path("addresses");
    fs::remove(addresses);
    // The address sanitizer otherwise refuses a library that is loaded before its own.
    const auto environment = clean({{"ACCEL_LISTENERS", addresses},
                                    {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                                    {"LD_PRELOAD", bin("librecord_listeners.so")}});
    const auto result = run_command(command, {.environment = environment, .limit = kLimit});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
    return lines_of(read_file(addresses));
  }
};

TEST_F(OpenPortsTest, AJobOnOneMachineListensOnTheLoopbackInterface) {
  fs::create_directories(folder_.path("training"));
  const Words training{bin("launched_training"), folder_.path("training")};
  for (const Words& command :
       {Words{bin("accel"), "launch", "--cpu", "--num_processes", "2", "--main_process_port", "0"} + training,
        Words{bin("sim-run"), "--ranks", "2", "--backend", "gloo", "--"} + training,
        Words{bin("accel"), "test", "--equivalence", "--cases", "20", "--cpu", "--num_processes", "2",
              "--main_process_port", "0"}}) {
    const auto addresses = listening_addresses(command);
    EXPECT_THAT(addresses, Not(IsEmpty())) << command[0] << " " << command[1];
    EXPECT_THAT(addresses, Each(StartsWith("127.0.0.1"))) << command[0] << " " << command[1];
  }
}

}  // namespace
}  // namespace accel::testing::open_ports_test
