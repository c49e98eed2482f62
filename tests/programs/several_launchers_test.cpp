// The ranks of a job that several launchers start, or that another launcher than `accel launch` starts. Several
// machines are several launchers on the loopback interface here; machines_test has separate networks between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "backends/launch/ports.hpp"
#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::several_launchers_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// --- several machines, each a launcher on the loopback interface ---

class SeveralLaunchersTest : public LaunchFixture {
 protected:
  // Starts one launcher per machine and returns their results, that of machine 0 first.
  [[nodiscard]] std::vector<CommandResult> launch_all(
      int machines, int per_machine, const Words& flags, const Words& program,
      const std::map<std::string, std::string>& environment = {}) const {
    const auto port = std::to_string(launcher::free_port());
    std::vector<std::future<CommandResult>> running;
    for (int machine = 0; machine < machines; ++machine) {
      const Words place{"--cpu",
                        "--num_processes",
                        std::to_string(machines * per_machine),
                        "--num_machines",
                        std::to_string(machines),
                        "--machine_rank",
                        std::to_string(machine),
                        "--main_process_ip",
                        "127.0.0.1",
                        "--main_process_port",
                        port,
                        "--num_cpu_threads_per_process",
                        "1",
                        "--no_prefix"};
      running.push_back(
          std::async(std::launch::async, [=, this] { return launch(place + flags + program, environment); }));
    }
    std::vector<CommandResult> results;
    for (auto& result : running) results.push_back(result.get());
    return results;
  }
};

// Rank, local rank and group rank must be those that torchrun would give.
TEST_F(SeveralLaunchersTest, RanksAreNumberedOverMachines) {
  const auto runs =
      launch_all(3, 2, {}, {"/bin/sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK"});
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(runs[0].output), UnorderedElementsAre("0/6 0/2 0", "1/6 1/2 0"));
  EXPECT_THAT(lines_of(runs[2].output), UnorderedElementsAre("4/6 0/2 2", "5/6 1/2 2"));
}

// All machines must print the cause. A user who looks at one terminal only would otherwise see "connection closed".
TEST_F(SeveralLaunchersTest, ADeadRankEndsEveryMachineWithTheSameMessage) {
  const auto runs = launch_all(
      3, 2, {},
      {"/bin/sh", "-c", leaves_number() + awaits(6) + "[ $RANK = 3 ] && { echo no ink >&2; exit 9; }; sleep 100"});
  for (const auto& run : runs) {
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(last_line(run.error), "accel launch: rank 3 ended with exit code 9: no ink");
  }
  expect_no_process_left(6);
}

// Rank 3 fails on machine 1. Machine 0 has no failed rank but must restart too, because the process group is gone.
TEST_F(SeveralLaunchersTest, AllMachinesRestartTogether) {
  const auto runs = launch_all(2, 2, {"--max_restarts", "1"},
                               {"/bin/sh", "-c",
                                "echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit "
                                "0; [ $RANK = 3 ] && exit 9; sleep 100"});
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(runs[0].output), UnorderedElementsAre("0 0", "1 0", "0 1", "1 1"));
  EXPECT_THAT(lines_of(runs[1].output), UnorderedElementsAre("2 0", "3 0", "2 1", "3 1"));
}

// With many machines, the message has to say which one to look at.
TEST_F(SeveralLaunchersTest, AMachineThatDoesNotJoinIsNamed) {
  const Words place{"--cpu",
                    "--num_processes",
                    "3",
                    "--num_machines",
                    "3",
                    "--main_process_ip",
                    "127.0.0.1",
                    "--main_process_port",
                    std::to_string(launcher::free_port()),
                    "--rdzv_conf",
                    "join_timeout=0.5"};
  const auto main = launch(place + Words{"/bin/true"});
  EXPECT_EQ(main.exit_code, 1);
  EXPECT_THAT(main.error, HasSubstr("machines 1, 2 of 3 did not join within 0.5 s"));
  const auto other = launch(place + Words{"--machine_rank", "1", "/bin/true"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.error, HasSubstr("machine 0 did not answer at 127.0.0.1:"));
}

// The numbers disagree, so ranks would have conflicting numbers. Both sides must report it: neither knows which is
// wrong.
TEST_F(SeveralLaunchersTest, MachinesThatDisagreeAreAUsageErrorOnBoth) {
  const auto port = std::to_string(launcher::free_port());
  const auto start = [&](const std::string& machine, const std::string& processes) {
    return launch({"--cpu", "--num_processes", processes, "--num_machines", "2", "--machine_rank", machine,
                   "--main_process_ip", "127.0.0.1", "--main_process_port", port, "/bin/true"});
  };
  auto other = std::async(std::launch::async, [&] { return start("1", "4"); });
  const auto main = start("0", "2");
  EXPECT_EQ(main.exit_code, 2);
  EXPECT_THAT(main.error,
              HasSubstr("machine 1 was started with --num_machines 2 --num_processes 4, machine 0 with 2 and 2"));
  EXPECT_EQ(other.get().exit_code, 2);
}

// The other machine would otherwise wait for the ranks that never come.
TEST_F(SeveralLaunchersTest, AMissingProgramOnOneMachineIsAUsageErrorOnAll) {
  const auto port = std::to_string(launcher::free_port());
  const auto start = [&](const std::string& machine, const Words& program) {
    return launch(Words{"--cpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank", machine,
                        "--main_process_ip", "127.0.0.1", "--main_process_port", port} +
                  program);
  };
  auto other = std::async(std::launch::async, [&] { return start("1", {"./no-such-program"}); });
  const auto main = start("0", {"/bin/sleep", "100"});
  EXPECT_EQ(main.exit_code, 2) << main.error;
  EXPECT_THAT(main.error, HasSubstr("machine 1: cannot run './no-such-program'"));
  EXPECT_EQ(other.get().exit_code, 2);
}

// A stranger on the network speaks before the launcher of machine 1 is there, and while the ranks run.
TEST_F(SeveralLaunchersTest, AStrangerDoesNotDisturbAJob) {
  const auto port = std::to_string(launcher::free_port());
  const auto start = [&](const std::string& machine) {
    return launch(
        {"--cpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank", machine, "--main_process_ip",
         "127.0.0.1", "--main_process_port", port, "/bin/sh", "-c",
         "touch " + folder_.path("ran") + "$RANK; while [ ! -e " + folder_.path("go") + " ]; do sleep 0.02; done"},
        {{"ACCEL_LAUNCH_SECRET", "tide"}});
  };
  const auto intrude = [&] {
    const std::string script =
        "import socket, sys\nfor line in ['join 1 2 2 X\\n', 'join 1 9 9 0 0\\n', 'x' * 300000]:\n  s = "
        "socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n  try:\n    s.sendall(line.encode())\n    "
        "while s.recv(100): pass\n  except OSError: pass\n";
    EXPECT_EQ(run_command({"python3", "-c", script, port}, {.limit = kLimit}).exit_code, 0);
  };
  auto main = std::async(std::launch::async, [&] { return start("0"); });
  usleep(1'000'000);
  intrude();
  auto other = std::async(std::launch::async, [&] { return start("1"); });
  while (!fs::exists(folder_.path("ran0")) || !fs::exists(folder_.path("ran1"))) usleep(10'000);
  intrude();
  folder_.write("go", "");
  EXPECT_EQ(main.get().exit_code, 0);
  EXPECT_EQ(other.get().exit_code, 0);
}

// The division into machines must not change the sums, and the simulator must give the same bits as both.
TEST_F(SeveralLaunchersTest, TrainingOnTwoMachinesEqualsOneMachineBitForBit) {
  for (const auto* folder : {"one", "two", "simulated"}) fs::create_directories(folder_.path(folder));
  const auto one = launch({"--cpu", "--num_processes", "4", "--no_prefix", "--main_process_port", "0",
                           "--num_cpu_threads_per_process", "1", bin("launched_training"), folder_.path("one")});
  const auto two = launch_all(2, 2, {}, {bin("launched_training"), folder_.path("two")});
  const auto simulated = launch({"--sim", "--num_processes", "4", bin("launched_training"), folder_.path("simulated")});
  EXPECT_EQ(one.exit_code, 0) << one.error;
  EXPECT_EQ(two[0].exit_code, 0) << two[0].error;
  EXPECT_EQ(simulated.exit_code, 0) << simulated.error;
  EXPECT_THAT(one.output, StartsWith("parameters "));
  EXPECT_EQ(last_line(two[0].output), last_line(one.output));
  EXPECT_EQ(last_line(simulated.output), last_line(one.output));
}

// --- other launchers ---

class OtherLaunchersTest : public LaunchFixture {};

// mpirun sets OMPI_* variables only. The library derives its ranks from them, so the binary needs no changes.
TEST_F(OtherLaunchersTest, MpirunStartsTheSameBinary) {
  for (const auto* folder : {"one", "mpi", "by_us"}) fs::create_directories(folder_.path(folder));
  const auto one = launch({"--cpu", "--num_processes", "4", "--no_prefix", "--main_process_port", "0",
                           "--num_cpu_threads_per_process", "1", bin("launched_training"), folder_.path("one")});
  const auto port = std::to_string(launcher::free_port());
  const auto direct =
      run_command({"mpirun", "-np", "4", "--oversubscribe", bin("launched_training"), folder_.path("mpi")},
                  {.environment = clean({{"MASTER_PORT", port}, {"OMP_NUM_THREADS", "1"}}), .limit = kLimit});
  EXPECT_EQ(direct.exit_code, 0) << direct.error;
  EXPECT_EQ(last_line(direct.output), last_line(one.output));
  const auto hosts = folder_.write("hosts", "# this machine\nlocalhost slots=4\n");
  const auto by_us = launch({"--cpu", "--num_processes", "4", "--mpirun_hostfile", hosts, "--main_process_port", port,
                             "--num_cpu_threads_per_process", "1", bin("launched_training"), folder_.path("by_us")});
  EXPECT_EQ(by_us.exit_code, 0) << by_us.error;
  EXPECT_EQ(last_line(by_us.output), last_line(one.output));
}

// srun sets these variables for its ranks. No SLURM is available here, so the test sets them.
TEST_F(OtherLaunchersTest, SlurmsVariablesMakeTheSameRanks) {
  for (const auto* folder : {"one", "slurm"}) fs::create_directories(folder_.path(folder));
  const auto one = launch({"--cpu", "--num_processes", "2", "--no_prefix", "--main_process_port", "0",
                           bin("launched_training"), folder_.path("one")},
                          {{"OMP_NUM_THREADS", "1"}});
  const auto port = std::to_string(launcher::free_port());
  std::vector<std::future<CommandResult>> ranks;
  for (const std::string rank : {"0", "1"}) {
    const auto variables = clean({{"SLURM_PROCID", rank},
                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                  {"SLURM_LOCALID", rank},
                                  {"SLURM_NTASKS_PER_NODE", "2"},
                                  {"MASTER_PORT", port},
                                  {"OMP_NUM_THREADS", "1"}});
    ranks.push_back(std::async(std::launch::async, [=, this] {
      return run_command({bin("launched_training"), folder_.path("slurm")},
                         {.environment = variables, .limit = kLimit});
    }));
  }
  const auto first = ranks[0].get();
  EXPECT_EQ(first.exit_code, 0) << first.error;
  EXPECT_EQ(last_line(first.output), last_line(one.output));
}

}  // namespace
}  // namespace accel::testing::several_launchers_test
