// Simulated ranks that end the process which they share, crash, are stopped, or meet a limit of the system. The run
// must fail, and name the rank or the limit. The tests use tests/backends/launch/faulty_program.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::ended_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class EndedRanksTest : public LaunchFixture {
 protected:
  // Runs three ranks that fail in this mode.
  [[nodiscard]] CommandResult run_faulty(const std::string& mode, const Words& options = {}) const {
    return run_command(
        Words{bin("sim-run"), "--ranks", "3"} + options + Words{"--", bin("faulty_program"), mode, folder_.path("")},
        {.limit = kLimit});
  }
};

// The address sanitizer handles crashes itself, ends the process where memory is short, and reports objects of ranks
// that leave their program by exit; accel then does not replace _exit.
#ifndef ACCEL_SANITIZED
// The other ranks wait for the one that has left. Its code must not become that of the run.
TEST_F(EndedRanksTest, ARankThatEndsItsProcessAtOnceFailsTheRun) {
  for (const std::string mode : {"exit_at_once", "quick_exit"}) {
    const auto run = run_faulty(mode);
    EXPECT_EQ(run.exit_code, 3) << mode << run.error;
    EXPECT_THAT(run.error, HasSubstr("rank 1 has ended its program")) << mode;
  }
  const auto run = run_faulty("exit_at_once_3");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("the program called _Exit(3); expected code 0")));
}

#endif

// Nothing can intercept a system call, so only sim-run notices it.
TEST_F(EndedRanksTest, AProcessThatEndsBeforeItsRanksFailsTheRun) {
  const auto run = run_faulty("exit_group");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("exit code 0 before its ranks had returned"), HasSubstr("--processes")));
}

// A child that a rank has forked is a separate process.
TEST_F(EndedRanksTest, AForkedChildOfARankEndsAlone) {
  const auto run = run_faulty("fork");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(lines_of(run.output).size(), 3U);
}

#ifndef ACCEL_SANITIZED
TEST_F(EndedRanksTest, ACrashNamesTheRankItsStepAndItsLastCall) {
  const std::map<std::string, std::string> signals{{"null", "signal 11 (Segmentation fault)"},
                                                   {"overflow", "signal 11 (Segmentation fault)"},
                                                   {"abort", "signal 6 (Aborted)"}};
  for (const auto& [mode, signal] : signals) {
    const auto run = run_faulty(mode);
    EXPECT_EQ(run.exit_code, 1) << mode;
    EXPECT_THAT(run.error, AllOf(HasSubstr("accel: error: rank 1, phase start; its last call: all_reduce #6 of group "
                                           "world (faulty_program.cpp:"),
                                 HasSubstr(signal + " ends all ranks"), HasSubstr("--processes")))
        << mode;
  }
}

#endif

// A stopped process does not act on SIGTERM before it continues.
TEST_F(EndedRanksTest, ASignalEndsAProgramThatIsStopped) {
  const auto script = "'" + bin("sim-run") + "' --ranks 3 -- '" + bin("faulty_program") + "' stop '" +
                      folder_.path("") +
                      "' & sim=$!; while ! grep -qs '^State:.T' /proc/$(pgrep -P $sim -x faulty_program)/status; do "
                      "sleep 0.05; done; kill -TERM $sim; wait $sim";
  const auto run = run_command({"/bin/bash", "-c", script}, {.limit = kLimit});
  EXPECT_FALSE(run.was_killed_at_limit);
  EXPECT_EQ(run.exit_code, 128 + SIGTERM) << run.error;
}

TEST_F(EndedRanksTest, AStoppedRankThatIsAProcessIsNamed) {
  const auto run = run_faulty("stop", {"--processes"});
  EXPECT_EQ(run.exit_code, 1) << run.error;
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("has been stopped by a signal"),
                               HasSubstr("last call: all_reduce #6")));
}

// Each limit leaves enough for the program to start, but not for 64 ranks.
TEST_F(EndedRanksTest, ALimitOfTheSystemIsOneSentence) {
  const auto limited = [&](const std::string& limit, const std::string& command) {
    return run_command({"/bin/bash", "-c", limit + "; exec " + command}, {.limit = kLimit});
  };
  const auto sim = "'" + bin("sim-run") + "' --ranks 64 ",
             program = "-- '" + bin("faulty_program") + "' ok '" + folder_.path("") + "'";
  const auto processes = limited("ulimit -n 40", sim + "--processes " + program);
  EXPECT_EQ(processes.exit_code, 2) << processes.error;
  EXPECT_THAT(processes.error, AllOf(HasSubstr("needs 280 open files, and the limit is 40"), HasSubstr("ulimit -n")));
  const auto gloo = limited("ulimit -n 40", sim + "--backend gloo " + program);
  EXPECT_EQ(gloo.exit_code, 2) << gloo.error;
  EXPECT_THAT(gloo.error, AllOf(HasSubstr("open files, and the limit is 40"), HasSubstr("ulimit -n")));
#ifndef ACCEL_SANITIZED
  const auto memory = limited("ulimit -v 700000", sim + program);
  EXPECT_EQ(memory.exit_code, 2) << memory.error;
  EXPECT_THAT(memory.error, AllOf(HasSubstr("limit"), HasSubstr("ulimit -v"), Not(HasSubstr("terminate called"))));
#endif
}

// Root has no limit of processes, so the command runs as another user who may read root's files.
TEST_F(EndedRanksTest, ALimitOfProcessesIsOneSentence) {
  const Words as_nobody{"setpriv",        "--reuid",    "65534",         "--regid",        "65534",
                        "--clear-groups", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"};
  const Words user = geteuid() == 0 ? as_nobody : Words{};
  if (run_command(user + Words{"/bin/true"}, {.limit = kLimit}).exit_code != 0)
    GTEST_SKIP() << "this machine does not allow root to run a command as another user";
  for (const auto& [limit, options] : std::vector<std::pair<std::string, Words>>{
           {"10", {"--ranks", "64"}},
           {"10", {"--ranks", "64", "--processes"}},
           {"10", {"--ranks", "64", "--backend", "gloo"}},
           // Enough for the processes, not for LibTorch's and Gloo's threads in them.
           {"20", {"--ranks", "16", "--processes"}},
           {"20", {"--ranks", "16", "--backend", "gloo"}}}) {
    const auto run =
        run_command(user + Words{"/bin/bash", "-c", "ulimit -u " + limit + "; exec \"$@\"", "sh", bin("sim-run")} +
                        options + Words{"--", bin("faulty_program"), "ok", folder_.path("")},
                    {.limit = kLimit});
    EXPECT_THAT(run.exit_code, ::testing::AnyOf(1, 2)) << options.back();
    EXPECT_THAT(run.error, AllOf(HasSubstr("the limit of threads and processes is reached (" + limit + " per user)"),
                                 HasSubstr("`ulimit -u`"), Not(HasSubstr("terminate called"))))
        << options.back();
  }
}

}  // namespace
}  // namespace accel::testing::ended_ranks_test
