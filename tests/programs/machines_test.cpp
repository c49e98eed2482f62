// Several machines, simulated by hosts in separate network namespaces. A training over them has the bits of one
// machine's. A cable that is pulled is reported on every rank, and a run with restarts left resumes from its
// checkpoint when the cable is back. Skipped where the machine does not allow namespaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "tests/programs/support/network.hpp"

namespace accel::testing::machines_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

// Two minutes is a safety net: every wait below ends within seconds.
constexpr std::chrono::seconds kLimit{120};
constexpr int kRanks = 4;

// The content of a file; "" if there is none.
std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class MachinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Network::why_not(); !reason.empty())
      GTEST_SKIP() << "no network namespaces on this machine: " << reason;
  }

  [[nodiscard]] std::string new_folder(const std::string& name) const {
    fs::create_directories(folder_.path(name));
    return folder_.path(name);
  }
  [[nodiscard]] std::map<std::string, std::string> environment(
      const std::map<std::string, std::string>& more = {}) const {
    std::map<std::string, std::string> variables{{"HF_HOME", folder_.path("home")}};
    variables.insert(more.begin(), more.end());
    return variables;
  }

  using Running = std::vector<std::future<CommandResult>>;
  // Starts the training of `folder` on `hosts` hosts with four ranks in total.
  [[nodiscard]] Running start(const Network& network, int hosts, const std::string& folder, const Words& flags = {},
                              const std::map<std::string, std::string>& variables = {}) const {
    Running running;
    for (int host = 0; host < hosts; ++host) {
      Words command{bin("accel"),
                    "launch",
                    "--cpu",
                    "--num_processes",
                    std::to_string(kRanks),
                    "--num_machines",
                    std::to_string(hosts),
                    "--machine_rank",
                    std::to_string(host),
                    "--main_process_ip",
                    Network::address(0),
                    "--main_process_port",
                    "29500",
                    "--num_cpu_threads_per_process",
                    "1",
                    "--no_prefix"};
      command.insert(command.end(), flags.begin(), flags.end());
      command.insert(command.end(), {bin("launched_training"), folder});
      running.push_back(std::async(std::launch::async, [=, this, &network] {
        return network.run_on(host, command, {.environment = environment(variables), .limit = kLimit});
      }));
    }
    return running;
  }
  static std::vector<CommandResult> all(Running running) {
    std::vector<CommandResult> results;
    for (auto& result : running) results.push_back(result.get());
    return results;
  }
  // Returns what one machine prints at the end, which is the reference.
  [[nodiscard]] std::string parameters_of_one_machine() const {
    const auto one = run_command(
        {bin("accel"), "launch", "--cpu", "--num_processes", std::to_string(kRanks), "--main_process_port", "0",
         "--no_prefix", "--num_cpu_threads_per_process", "1", bin("launched_training"), new_folder("one")},
        {.environment = environment(), .limit = kLimit});
    EXPECT_EQ(one.exit_code, 0) << one.error;
    EXPECT_THAT(last_line(one.output), StartsWith("parameters "));
    return last_line(one.output);
  }
  // Waits until every rank of the first attempt has reached the middle of the training. Returns their process ids.
  static std::vector<pid_t> wait_for_the_middle(const std::string& folder) {
    std::vector<pid_t> processes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto file = fs::path(folder) / ("reached." + std::to_string(rank));
      while (read_file(file).empty()) usleep(10'000);
      processes.push_back(static_cast<pid_t>(std::stol(read_file(file))));
    }
    return processes;
  }
  static void wait_for_the_end(const std::vector<pid_t>& processes) {
    for (const auto process : processes) {
      // A pidfd waits for a process that is not our child, without polling for its number.
      pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, process, 0)), POLLIN, 0};
      EXPECT_TRUE(ended.fd < 0 || poll(&ended, 1, 60'000) == 1) << "process " << process << " is left";
      close(ended.fd);
    }
  }

  TemporaryFolder folder_;
};

class MachineCountTest : public MachinesTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Hosts, MachineCountTest, ::testing::Values(2, 4), [](const auto& info) {
  return std::to_string(info.param) + "x" + std::to_string(kRanks / info.param);
});

// Here the machines are network namespaces with their own addresses, so the connections are real ones.
TEST_P(MachineCountTest, TrainingEqualsOneMachineAndTheSimulatorBitForBit) {
  const Network network(GetParam());
  const auto runs = all(start(network, GetParam(), new_folder("several")));
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  const auto simulated = run_command({bin("accel"), "launch", "--sim", "--num_processes", std::to_string(kRanks),
                                      bin("launched_training"), new_folder("simulated")},
                                     {.environment = environment(), .limit = kLimit});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.error;
  const auto expected = parameters_of_one_machine();
  EXPECT_EQ(last_line(runs[0].output), expected);
  EXPECT_EQ(last_line(simulated.output), expected);
}

// A pulled cable sends no FIN or RST, so nothing but a time-out can notice it. The launchers' is longer than that of
// collectives: a launcher that gave up first would end its ranks before they report.
TEST_F(MachinesTest, APulledCableIsReportedOnEveryRankWithinTheTimeout) {
  const Network network(2);
  const auto folder = new_folder("cut");
  folder_.write("cut/pause", "");
  auto running = start(network, 2, folder, {"--log_dir", folder_.path("logs"), "--rdzv_conf", "keep_alive_interval=2"},
                       {{"ACCEL_TIMEOUT_SECONDS", "3"}});
  const auto processes = wait_for_the_middle(folder);
  network.pull(1);
  const auto pulled = std::chrono::steady_clock::now();
  folder_.write("cut/go", "");
  wait_for_the_end(processes);
  EXPECT_LT(std::chrono::steady_clock::now() - pulled, std::chrono::seconds(10));
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto error = read_file(folder_.path("logs/attempt_0/rank_" + std::to_string(rank) + "/stderr.log"));
    EXPECT_THAT(last_line(error),
                // The rank that times out first closes its connections, so other ranks may see "closed by peer".
                AllOf(StartsWith("error: "), AnyOf(HasSubstr("Timed out waiting 3000ms"), HasSubstr("losed by peer"))))
        << "rank " << rank;
  }
  for (const auto& run : all(std::move(running))) {
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(last_line(run.error), StartsWith("accel launch: "));
  }
}

// The cable is pulled in the middle of the training and put back later. The launchers must notice, restart and end with
// the same bits.
TEST_F(MachinesTest, WithTheCableBackTheRunResumesToTheSameParameters) {
  const Network network(2);
  const auto folder = new_folder("cut");
  folder_.write("cut/pause", "");
  auto running = start(network, 2, folder, {"--max_restarts", "3", "--rdzv_conf", "keep_alive_interval=1"},
                       {{"ACCEL_TIMEOUT_SECONDS", "3"}});
  const auto processes = wait_for_the_middle(folder);
  network.pull(1);
  folder_.write("cut/go", "");
  wait_for_the_end(processes);
  network.plug(1);
  const auto runs = all(std::move(running));
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(runs[0].error, HasSubstr("restarting (1 of at most 3)"));
  EXPECT_THAT(runs[0].output, HasSubstr("continues at step 20"));
  EXPECT_EQ(last_line(runs[0].output), parameters_of_one_machine());
}

// No rank communicates here, so only the launchers' keep-alive messages can notice the loss.
TEST_F(MachinesTest, ASilentMachineEndsTheOthersBeforeAnyRankNotices) {
  const Network network(2);
  const auto folder = new_folder("silent");
  folder_.write("silent/pause", "");  // no rank continues
  auto running = start(network, 2, folder, {"--rdzv_conf", "keep_alive_interval=0.5,keep_alive_max_attempt=2"});
  const auto processes = wait_for_the_middle(folder);
  network.pull(1);
  wait_for_the_end(processes);
  const auto runs = all(std::move(running));
  EXPECT_EQ(runs[0].exit_code, 1);
  EXPECT_EQ(last_line(runs[0].error), "accel launch: machine 1 has not responded for 1 s");
  EXPECT_EQ(runs[1].exit_code, 1);
  EXPECT_EQ(last_line(runs[1].error), "accel launch: machine 0 (10.77.0.1:29500) has not responded for 1 s");
}

}  // namespace
}  // namespace accel::testing::machines_test
