// What happens to the ranks of `accel launch` when one of them fails, or the launcher itself. No process may be
// left: an orphan keeps its port and its GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <set>

#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::launch_failure_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class LaunchFailureTest : public LaunchFixture {};

// --- how ranks end ---

// All ranks leave their process number first, so that the test can check that none of them survives. The cause is
// on the last line, where a user looks.
TEST_F(LaunchFailureTest, ADeadRankEndsTheRunAndIsReportedLast) {
  const auto run =
      shell({"--cpu", "--num_processes", "4"},
            leaves_number() + awaits(4) + "if [ $RANK = 2 ]; then echo the ink has run out >&2; exit 5; fi; sleep 100");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(last_line(run.error), "accel launch: rank 2 ended with exit code 5: the ink has run out");
  expect_no_process_left(4);
}

TEST_F(LaunchFailureTest, AKilledRankIsReportedByItsSignal) {
  const auto run =
      shell({"--cpu", "--num_processes", "3"}, leaves_number() + awaits(3) + "[ $RANK = 1 ] && kill -9 $$; sleep 100");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(last_line(run.error), HasSubstr("rank 1 was killed by signal 9 (Killed)"));
  expect_no_process_left(3);
}

TEST_F(LaunchFailureTest, ExitCodeTwoOfARankIsAUsageError) {
  EXPECT_EQ(shell({"--cpu", "--num_processes", "2"}, "exit 2").exit_code, 2);
}

// The other ranks fail with a connection error, which is a consequence. The diagnosis names the rank that left.
TEST_F(LaunchFailureTest, ARankThatEndsEarlyWhileOthersWaitIsNamed) {
  fs::create_directories(folder_.path("pids"));
  const auto run = launch({"--cpu", "--num_processes", "3", "--main_process_port", "0", bin("faulty_program"), "leave",
                           folder_.path("pids")},
                          {{"ACCEL_TIMEOUT_SECONDS", "10"}});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("hang: every rank is blocked or has ended; none can continue\n  all_reduce #"),
                               HasSubstr("missing: rank 1 has ended its program, after all_reduce #")));
  expect_no_process_left(3);
}

// Data loaders and wrapper scripts start children of their own, in this case a child of a child.
TEST_F(LaunchFailureTest, ProcessesThatARankStartedEndWithIt) {
  const auto run =
      shell({"--cpu", "--num_processes", "2"}, leaves_number() + "(" + "sh -c '" + leaves_number() + "sleep 100'" +
                                                   ") & " + awaits(4) + "[ $RANK = 1 ] && exit 3; wait");
  EXPECT_EQ(run.exit_code, 1);
  expect_no_process_left(4);
}

class SignalTest : public LaunchFixture, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGTERM, SIGINT, SIGHUP),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

// Only the launcher receives the signal, as from `kill` or from a scheduler.
TEST_P(SignalTest, ReachesEveryChildAndEndsTheLauncherToo) {
  for (const std::string count : {"1", "3"}) {
    fs::remove_all(folder_.path("pids"));
    const auto heard = folder_.path("heard" + count);
    const auto name = std::string(sigabbrev_np(GetParam()));
    const auto program = folder_.write("program", "#!/bin/bash\ntrap 'echo heard >> " + heard + "; kill $!; exit 0' " +
                                                      name + "\nsleep 100 & \n" + leaves_number() + "\nwait\n");
    fs::permissions(program, fs::perms::owner_all);
    // A shell starts background jobs with SIGINT ignored, nohup with SIGHUP. The child of this Python script does not
    // inherit that.
    const auto script =
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\np = subprocess.Popen(sys.argv[3:])\nwhile "
        "len(os.listdir(sys.argv[1])) < " +
        count + ": time.sleep(0.02)\np.send_signal(int(sys.argv[2]))\nsys.exit(p.wait() & 255)\n";
    const auto run = run_command({"python3", "-c", script, folder_.path("pids"), std::to_string(GetParam()),
                                  bin("accel"), "launch", "--cpu", "--num_processes", count, program},
                                 {.environment = clean(), .limit = kLimit});
    EXPECT_FALSE(run.was_killed_at_limit);
    EXPECT_EQ(run.exit_code, (-GetParam()) & 255) << run.error;
    EXPECT_EQ(lines_of(read_file(heard)).size(), std::stoul(count));
    expect_no_process_left(std::stoul(count));
  }
}

// SIGKILL cannot be caught, so the kernel must end the ranks (PR_SET_PDEATHSIG).
TEST_F(LaunchFailureTest, ALauncherThatIsKilledLeavesNoProcess) {
  const auto script = "'" + bin("accel") + "' launch --cpu --num_processes 3 /bin/sh -c '" + leaves_number() +
                      "exec sleep 100' & pid=$!; " + awaits(3) + "kill -9 $pid; wait $pid";
  const auto run = run_command({"/bin/sh", "-c", script}, {.environment = clean(), .limit = kLimit});
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
  expect_no_process_left(3);
}

// --- restarts
// -----------------------------------------------------------------------------------------------------

// The old port may be in TIME_WAIT, so a restart on the same port could fail. Ranks that did not fail restart as
// well, because their process group is broken.
TEST_F(LaunchFailureTest, EveryRankRestartsWithTheNextNumberAndAnotherPort) {
  const auto run = shell({"--cpu", "--num_processes", "3", "--max_restarts", "2", "--no_prefix"},
                         "echo $RANK $TORCHELASTIC_RESTART_COUNT; echo $MASTER_PORT >> " + folder_.path("ports") +
                             "; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 7; [ $TORCHELASTIC_RESTART_COUNT = 0 "
                             "] && sleep 100; exit 0");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), UnorderedElementsAre("0 0", "1 0", "2 0", "0 1", "1 1", "2 1"));
  EXPECT_THAT(run.error, HasSubstr("rank 1 ended with exit code 7; restarting (1 of at most 2)"));
  const auto read = lines_of(read_file(folder_.path("ports")));
  EXPECT_EQ(std::set<std::string>(read.begin(), read.end()).size(), 2U);
}

TEST_F(LaunchFailureTest, EveryAttemptHasItsOwnLogs) {
  const auto run =
      shell({"--cpu", "--num_processes", "2", "--max_restarts", "1", "--log_dir", folder_.path("logs")},
            "echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; touch " +
                // Both ranks wait until both have written, or the launcher could stop one before it prints.
                folder_.path("") + "/wrote$RANK; while [ ! -e " + folder_.path("wrote0") + " ] || [ ! -e " +
                folder_.path("wrote1") + " ]; do sleep 0.02; done; exit 1");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  for (const std::string attempt : {"0", "1"}) {
    for (const std::string rank : {"0", "1"})
      EXPECT_EQ(read_file(folder_.path("logs/attempt_" + attempt + "/rank_" + rank + "/stdout.log")),
                rank + " " + attempt + "\n");
  }
}

TEST_F(LaunchFailureTest, AfterTheLastRestartTheLastFailureIsReported) {
  const auto run = shell({"--cpu", "--num_processes", "2", "--max_restarts", "2"},
                         "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 4");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(last_line(run.error), AllOf(HasSubstr("ended with exit code 4"), HasSubstr("(after 2 restarts)")));
}

TEST_F(LaunchFailureTest, AKilledTrainingResumesToTheSameParameters) {
  const Words flags{
      "--cpu", "--num_processes", "4", "--no_prefix", "--main_process_port", "0", "--num_cpu_threads_per_process", "1"};
  fs::create_directories(folder_.path("whole"));
  fs::create_directories(folder_.path("cut"));
  const auto whole = launch(flags + Words{bin("launched_training"), folder_.path("whole")});
  EXPECT_EQ(whole.exit_code, 0) << whole.error;
  // The first attempt stops at step 22, so rank 2 is killed between the checkpoints of steps 20 and 25.
  folder_.write("cut/pause", "");
  const auto killer = std::async(std::launch::async, [&] {
    while (!fs::exists(folder_.path("cut/reached.2")) || read_file(folder_.path("cut/reached.2")).empty())
      usleep(10'000);
    kill(static_cast<pid_t>(std::stol(read_file(folder_.path("cut/reached.2")))), SIGKILL);
  });
  const auto cut = launch(flags + Words{"--max_restarts", "1", bin("launched_training"), folder_.path("cut")});
  EXPECT_EQ(cut.exit_code, 0) << cut.error;
  EXPECT_THAT(cut.error, HasSubstr("rank 2 was killed by signal 9"));
  EXPECT_THAT(cut.output, HasSubstr("continues at step 20"));
  EXPECT_EQ(last_line(cut.output), last_line(whole.output));
  EXPECT_THAT(last_line(whole.output), StartsWith("parameters "));
}

}  // namespace
}  // namespace accel::testing::launch_failure_test
