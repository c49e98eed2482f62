// LibTorch's store, Gloo and the launcher's protocol have no authentication against other machines, so a job on one
// machine must listen on no address that others reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <thread>

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
  // Runs a command and returns the hexadecimal addresses, as in /proc/net/tcp, on which its processes have listened.
  [[nodiscard]] std::set<std::string> listening_addresses(const Words& command) const {
    auto run = std::async(std::launch::async, [&] {
      return run_command(command, {.environment = clean({{"OPEN_PORTS_TEST", mark()}}), .limit = kLimit});
    });
    std::set<std::string> addresses;
    while (run.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) add_addresses(addresses);
    const auto result = run.get();
    EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
    return addresses;
  }

 private:
  [[nodiscard]] std::string mark() const { return folder_.path("mark"); }

  // Processes of the command are those that have inherited the mark.
  void add_addresses(std::set<std::string>& addresses) const {
    std::error_code ended;
    for (const auto& process : fs::directory_iterator("/proc", ended)) {
      if (read_file(process.path() / "environ").find("OPEN_PORTS_TEST=" + mark()) == std::string::npos) continue;
      std::set<std::string> sockets;
      for (fs::directory_iterator file(process.path() / "fd", ended), end; !ended && file != end; file.increment(ended))
        sockets.insert(fs::read_symlink(file->path(), ended).string());
      for (const std::string table : {"net/tcp", "net/tcp6"}) {
        for (const auto& line : lines_of(read_file(process.path() / table))) {
          std::istringstream words(line);
          std::string number, address, peer, state, queues, timer, retransmits, user, timeout, inode;
          words >> number >> address >> peer >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
          if (state == "0A" && sockets.contains("socket:[" + inode + "]")) addresses.insert(address);
        }
      }
    }
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
    EXPECT_THAT(addresses, Each(StartsWith("0100007F:"))) << command[0] << " " << command[1];  // 127.0.0.1
  }
}

}  // namespace
}  // namespace accel::testing::open_ports_test
