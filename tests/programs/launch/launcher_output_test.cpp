// Ranks that write without a pause, and readers of the launcher's output that stop reading. Neither may delay signals,
// failures or the messages between machines.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <thread>

#include "backends/launch/ports.hpp"
#include "backends/launch/process.hpp"
#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::launcher_output_test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// The requirement is one second; the rest is for a loaded test machine. Without the bound it is 40 s and more.
constexpr auto kPrompt = std::chrono::seconds(5);

// A launcher whose standard output is a pipe, which the test reads or does not read.
class PipedLauncher {
 public:
  PipedLauncher(const Words& arguments, const std::map<std::string, std::string>& environment, std::string error_file) {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    const int error = open(error_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    pid_ = launcher::start_process({.command = Words{bin("accel"), "launch"} + arguments,
                                    .environment = environment,
                                    .descriptors = {{ends_[1], STDOUT_FILENO}, {error, STDERR_FILENO}}});
    close(std::exchange(ends_[1], -1));
    close(error);
  }
  ~PipedLauncher() {
    if (!status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (reader_.joinable()) reader_.join();
    close(ends_[0]);
  }
  PipedLauncher(const PipedLauncher&) = delete;
  PipedLauncher& operator=(const PipedLauncher&) = delete;

  // Reads and discards everything from now on.
  void read_all() {
    reader_ = std::thread([this] {
      std::array<char, 1 << 16> buffer{};
      while (read(ends_[0], buffer.data(), buffer.size()) > 0) {
      }
    });
  }
  void signal(int number) const { kill(pid_, number); }
  [[nodiscard]] bool has_ended() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = launcher::exit_code_of_status(status);
    return status_.has_value();
  }
  // The exit code; -1 if the launcher still runs after `limit`.
  int wait(std::chrono::milliseconds limit) {
    for (const auto until = Clock::now() + limit; !has_ended() && Clock::now() < until;) usleep(5'000);
    return status_.value_or(-1);
  }

 private:
  std::array<int, 2> ends_{};
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::thread reader_;
};

class LauncherOutputTest : public LaunchFixture {
 protected:
  [[nodiscard]] std::unique_ptr<PipedLauncher> start(const Words& flags, const std::string& script) const {
    return std::make_unique<PipedLauncher>(
        Words{"--cpu", "--main_process_port", "0"} + flags + Words{"/bin/sh", "-c", script}, clean(),
        folder_.path("error"));
  }
  void wait_for(const std::string& name) const {
    for (const auto until = Clock::now() + kLimit;
         !std::filesystem::exists(folder_.path(name)) && Clock::now() < until;)
      usleep(5'000);
  }
  [[nodiscard]] std::string touch(const std::string& name) const { return "touch " + folder_.path(name) + "; "; }
};

TEST_F(LauncherOutputTest, ASignalEndsRanksThatWriteWithoutAPause) {
  const auto launcher = start({"--num_processes", "2"}, touch("ready") + "exec yes");
  launcher->read_all();
  wait_for("ready");
  usleep(500'000);  // the flood has begun
  launcher->signal(SIGTERM);
  EXPECT_EQ(launcher->wait(kPrompt), 128 + SIGTERM);
}

TEST_F(LauncherOutputTest, AFailureEndsRanksThatWriteWithoutAPause) {
  const auto launcher =
      start({"--num_processes", "2"}, "[ $RANK = 0 ] && exec yes; sleep 0.5; " + touch("failed") + "exit 3");
  launcher->read_all();
  wait_for("failed");
  EXPECT_EQ(launcher->wait(kPrompt), 1);
  EXPECT_EQ(last_line(read_file(folder_.path("error"))), "accel launch: rank 1 ended with exit code 3");
}

// A line without an end is not kept in memory: its parts are forwarded.
TEST_F(LauncherOutputTest, AnEndlessLineNeitherGrowsTheLauncherNorDelaysASignal) {
  const auto launcher = start({"--num_processes", "2"}, touch("ready") + "exec cat /dev/zero");
  launcher->read_all();
  wait_for("ready");
  usleep(500'000);
  launcher->signal(SIGTERM);
  EXPECT_EQ(launcher->wait(kPrompt), 128 + SIGTERM);
}

TEST_F(LauncherOutputTest, ASignalEndsALauncherWhoseOutputNobodyReads) {
  const auto launcher = start({"--num_processes", "2"}, touch("ready") + "exec yes");
  wait_for("ready");
  usleep(500'000);  // pipes and queue are full
  launcher->signal(SIGTERM);
  EXPECT_EQ(launcher->wait(kPrompt), 128 + SIGTERM);
}

// The failure is printed on standard error, which somebody reads. Standard output is given up after five seconds.
TEST_F(LauncherOutputTest, AFailureEndsALauncherWhoseOutputNobodyReads) {
  const auto launcher =
      start({"--num_processes", "2"}, "[ $RANK = 0 ] && exec yes; sleep 0.5; " + touch("failed") + "exit 3");
  wait_for("failed");
  EXPECT_EQ(launcher->wait(kPrompt + std::chrono::seconds(5)), 1);
  EXPECT_EQ(last_line(read_file(folder_.path("error"))), "accel launch: rank 1 ended with exit code 3");
}

// A reader that pauses loses nothing: the ranks wait.
TEST_F(LauncherOutputTest, EveryLineArrivesAfterAPauseOfTheReader) {
  const auto script = "'" + bin("accel") +
                      "' launch --cpu --main_process_port 0 --num_processes 2 --no_prefix /bin/sh -c 'seq 200000' | "
                      "(sleep 2; sort -n | uniq -c | awk \"{n += (\\$1 == 2)} END {print n}\")";
  const auto run = run_command({"/bin/sh", "-c", script}, {.environment = clean(), .limit = kLimit});
  EXPECT_EQ(run.output, "200000\n") << run.error;
}

// Signs of life continue while the reader of machine 0 pauses for longer than the time after which a machine is lost.
TEST_F(LauncherOutputTest, AReaderThatPausesDoesNotEndAJobOnTwoMachines) {
  const auto port = std::to_string(launcher::free_port());
  const auto machine = [&](const std::string& number) {
    return std::make_unique<PipedLauncher>(
        Words{"--cpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank", number, "--main_process_ip",
              "127.0.0.1", "--main_process_port", port, "--rdzv_conf", "keep_alive_interval=0.3", "/bin/sh", "-c",
              "seq 200000"},
        clean(), folder_.path("error" + number));
  };
  const auto main = machine("0"), other = machine("1");
  other->read_all();
  usleep(3'000'000);  // three times the time without signs of life
  EXPECT_FALSE(main->has_ended());
  main->read_all();
  EXPECT_EQ(main->wait(kLimit), 0) << read_file(folder_.path("error0"));
  EXPECT_EQ(other->wait(kLimit), 0) << read_file(folder_.path("error1"));
}

}  // namespace
}  // namespace accel::testing::launcher_output_test
