// A user's program under sim-run: its output, its exit code and the way it ends must be what a user expects. The
// tests use tests/backends/launch/faulty_program.cpp, which fails in the way that its argument names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::user_program_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr std::chrono::seconds kLimit{30};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string contents(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class UserProgramTest : public ::testing::Test {
 protected:
  // Runs sim-run with `options`, then `-- COMMAND`.
  static CommandResult sim_run(std::vector<std::string> options, const std::vector<std::string>& command) {
    options.insert(options.begin(), bin("sim-run"));
    options.emplace_back("--");
    options.insert(options.end(), command.begin(), command.end());
    return run_command(options, {.limit = kLimit});
  }
  // Runs three ranks that fail as tests/backends/launch/faulty_program.cpp does in this mode.
  [[nodiscard]] CommandResult run_faulty(const std::string& mode, const std::string& backend = "sim",
                                         const std::string& program = "faulty_program") const {
    return sim_run({"--ranks", "3", "--backend", backend}, {bin(program), mode, folder_.path()});
  }
  // Each process of the program left its number in the folder. Waits until all of them have ended.
  void expect_processes_end() const {
    for (const auto& process : folder_.files()) {
      pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, std::stol(process), 0)), POLLIN, 0};
      EXPECT_TRUE(ended.fd < 0 || poll(&ended, 1, 1000 * static_cast<int>(kLimit.count())) == 1)
          << "process " << process << " is left";
      close(ended.fd);
    }
  }

  TemporaryFolder folder_;
};

class UserProgramBackendTest : public UserProgramTest, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, UserProgramBackendTest, ::testing::Values("sim", "gloo"),
                         [](const auto& info) { return info.param; });

// sim-run adds nothing to the program's output, so that scripts can parse it.
TEST_P(UserProgramBackendTest, OutputIsThatOfTheRanksAndNothingElse) {
  const auto run = run_faulty("ok", GetParam());
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(lines_of(run.output),
              UnorderedElementsAre("rank 0 of 3 has 20 sums", "rank 1 of 3 has 20 sums", "rank 2 of 3 has 20 sums"));
  EXPECT_THAT(run.error, IsEmpty());
  EXPECT_EQ(folder_.files().size(), GetParam() == "sim" ? 1U : 3U) << "processes";
}

TEST_P(UserProgramBackendTest, RankThatThrowsIsExitCodeOneAndNamed) {
  const auto run = run_faulty("throw", GetParam());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("the ink has run out")));
}

TEST_P(UserProgramBackendTest, RankThatThrowsAConfigErrorIsExitCodeTwo) {
  const auto run = run_faulty("throw_config", GetParam());
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("ink: expected black, got 'none'")));
}

TEST_P(UserProgramBackendTest, RankThatReturnsThreeIsExitCodeOneAndNamed) {
  const auto run = run_faulty("code", GetParam());
  EXPECT_EQ(run.exit_code, 1) << "3 is reserved for a diagnosed hang";
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("train returned 3; expected 0")));
}

TEST_P(UserProgramBackendTest, ProgramThatDiesIsExitCodeOneWithItsSignal) {
  const auto run = run_faulty("die", GetParam());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, HasSubstr("was killed by signal 9 (Killed)"));
}

// sim-run cannot simulate such a program. Reporting success would be wrong even if it ends with code 0.
TEST_P(UserProgramBackendTest, ProgramThatNeverCallsRunIsExitCodeOne) {
  for (const auto* program : {"true", "false"}) {
    const auto run = sim_run({"--backend", GetParam(), "--ranks", "2"}, {program});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.error, AllOf(HasSubstr("'" + std::string(program) + "' ended with exit code"),
                                 HasSubstr("without calling accel::run")));
  }
}

TEST_P(UserProgramBackendTest, MissingProgramIsExitCodeTwo) {
  const auto run = sim_run({"--backend", GetParam()}, {"./no-such-program", "argument"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("cannot run './no-such-program'"), HasSubstr("No such file")));
}

TEST_P(UserProgramBackendTest, SignalToSimRunEndsTheProgram) {
  // Rank 1 waits forever. The program has started once its file exists.
  const auto script = "'" + bin("sim-run") + "' --ranks 3 --backend " + GetParam() + " -- '" + bin("faulty_program") +
                      "' hang " + folder_.path() + " & pid=$!; while [ -z \"$(ls " + folder_.path() +
                      ")\" ]; do sleep 0.02; done; kill -TERM $pid; wait $pid";
  const auto run = run_command({"/bin/sh", "-c", script}, {.limit = kLimit});
  EXPECT_FALSE(run.was_killed_at_limit);
  EXPECT_EQ(run.exit_code, 128 + SIGTERM) << run.error;
  expect_processes_end();
}

// On simulated ranks std::exit would end the process of all ranks, so the simulator intercepts it (--help of a
// user's program calls it).
TEST_P(UserProgramBackendTest, AProgramThatExitsOnAllRanksEndsAsProcessesDo) {
  const auto help = run_faulty("help", GetParam());
  EXPECT_EQ(help.exit_code, 0) << help.error;
  EXPECT_THAT(lines_of(help.output), AllOf(::testing::SizeIs(3), ::testing::Each(HasSubstr("usage: faulty_program"))));
  EXPECT_THAT(help.error, IsEmpty());
  const auto bad_usage = run_faulty("bad_usage", GetParam());
  EXPECT_EQ(bad_usage.exit_code, 1);
  EXPECT_THAT(bad_usage.output, HasSubstr("usage: faulty_program"));
  EXPECT_THAT(bad_usage.error, HasSubstr(GetParam() == "sim" ? "the program called std::exit(4)" : "exit code 4"));
}

// On the simulator all ranks share one process, so std::exit() of one rank must not end it without a report.
TEST_P(UserProgramBackendTest, ARankThatExitsIsNamedWithItsCode) {
  const auto run = run_faulty("exit", GetParam());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"),
                               HasSubstr(GetParam() == "sim" ? "the program called std::exit(3)" : "exit code 3")));
}

TEST_F(UserProgramTest, ExitInAThreadOfARankEndsTheProcessAndIsReported) {
  const auto run = run_faulty("exit_in_thread");
  EXPECT_EQ(run.exit_code, 1) << "3 is what a diagnosed hang is";
  EXPECT_THAT(run.error, HasSubstr("std::exit(3) was called on a thread that is not a rank"));
}

// With one rank, `--help` of the program has to work as if sim-run were not there.
TEST_F(UserProgramTest, ExitOfASingleRankEndsTheProcessUnchanged) {
  const auto simulated = sim_run({"--ranks", "1"}, {bin("faulty_program"), "help", folder_.path()});
  const auto alone = run_command({bin("faulty_program"), "help", folder_.path()}, {.limit = kLimit});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.error;
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_EQ(simulated.output, alone.output);
  EXPECT_EQ(run_command({bin("faulty_program"), "bad_usage", folder_.path()}, {.limit = kLimit}).exit_code, 4);
}

TEST_F(UserProgramTest, SkippedCollectiveIsExitCodeThreeWithTheDiagnosis) {
  const auto run = run_faulty("skip");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error,
              AllOf(HasSubstr("all_reduce #19 of group world"),
                    HasSubstr("ranks 0, 2: all_reduce(sum, float32 [1000])"), HasSubstr("rank 1: barrier()")));
}

// The page must show the reason of any failure, not only of a hang.
TEST_F(UserProgramTest, ThePageOfARunWhoseRanksThrewSaysSo) {
  TemporaryFolder report;
  const auto run =
      sim_run({"--ranks", "3", "--report", report.path("page"), "--diagnosis", report.path("diagnosis.json")},
              {bin("faulty_program"), "throw", folder_.path()});
  EXPECT_EQ(run.exit_code, 1);
  const auto page = contents(report.path("page/index.html"));
  EXPECT_THAT(page, AllOf(HasSubstr("the ink has run out"), ::testing::Not(HasSubstr("✓ completed"))));
  EXPECT_THAT(contents(report.path("diagnosis.json")), HasSubstr("rank_failure"));
}

// The dead process cannot write the file itself, so sim-run writes it and replaces the old one.
TEST_F(UserProgramTest, ADiagnosisIsWrittenAfterAProcessDies) {
  const auto file = folder_.write("diagnosis.json", R"({"kind":"none"})");
  TemporaryFolder processes;
  const auto run = sim_run({"--ranks", "3", "--diagnosis", file}, {bin("faulty_program"), "die", processes.path()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(contents(file), AllOf(HasSubstr(R"("kind":"rank_failure")"), HasSubstr("killed by signal 9")));
}

// A slow rank has stopped nothing, so it is not the cause.
TEST_F(UserProgramTest, ARankThatThrowsBesideAHarmlessFaultIsTheOneNamed) {
  const auto faults = folder_.write("slow.yaml", "faults:\n  - {kind: slow_rank, rank: 0, factor: 2}\n");
  TemporaryFolder processes;
  const auto run = sim_run({"--ranks", "3", "--faults", faults, "--diagnosis", folder_.path("diagnosis.json")},
                           {bin("faulty_program"), "throw_config", processes.path()});
  EXPECT_EQ(run.exit_code, 2) << run.error;
  EXPECT_THAT(contents(folder_.path("diagnosis.json")),
              AllOf(HasSubstr(R"("ranks":[1])"), ::testing::Not(HasSubstr("Connection closed"))));
}

#ifndef ACCEL_SANITIZED  // its operator delete would be hidden, too, and LibTorch would use another one
// The simulator intercepts functions of LibTorch by exported symbols. Without them a run would silently be
// unchecked.
TEST_F(UserProgramTest, HiddenSymbolsAreReportedWithTheLinkerFlag) {
  const auto run = run_faulty("ok", "sim", "hidden_symbols_program");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("does not export its symbols"), HasSubstr("-rdynamic")));
}
#endif

// Arguments with the names of sim-run's own options must reach the program unchanged.
TEST_F(UserProgramTest, ArgumentsAfterTheProgramBelongToTheProgram) {
  const auto run = sim_run({"--quiet", "--progress", "off", "--ranks", "1"},
                           {"/bin/sh", "-c", "echo \"$@\" $ACCEL_SIM", "sh", "--ranks", "7", "--set", "--"});
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("--ranks 7 --set -- {"), HasSubstr("\"ranks\":1"), HasSubstr("\"backend\":\"sim\"")));
}

TEST_F(UserProgramTest, AllProblemsOfTheOptionsAreInOneMessage) {
  const auto run = sim_run({"--ranks", "5000", "--set", "a=b", "--max-steps", "3", "--trace=x", "--save-every", "3",
                            "--resume", "d", "--faults", "f", "x.yaml"},
                           {});
  EXPECT_EQ(run.exit_code, 2);
  for (const std::string option : {"--set", "--max-steps", "--trace", "--save-every", "--resume"})
    EXPECT_THAT(run.error, HasSubstr(option + ": only experiments support"));
  EXPECT_THAT(run.error, AllOf(HasSubstr("--ranks: 5000 ranks"),
                               HasSubstr("--faults: f is not a file; expected an existing YAML file"),
                               HasSubstr("x.yaml: unexpected"), HasSubstr("no program")));
  EXPECT_THAT(lines_of(run.error), ::testing::SizeIs(9));
}

// `launched_training` resumes from what it finds in its folder, so every run gets a new folder.
std::vector<std::string> training_in_a_new_folder(const TemporaryFolder& folder) {
  return {"/bin/sh", "-c", "exec \"$0\" \"$(mktemp -d -p \"$1\")\"", bin("launched_training"), folder.path()};
}

TEST_F(UserProgramTest, ASweepRunsEachNumberOfRanksAndWritesOnePage) {
  const auto run = sim_run({"--ranks", "2,4", "--network", source("configs/sim/networks/ethernet_25g.yaml"), "--report",
                            folder_.path() + "/page"},
                           training_in_a_new_folder(folder_));
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), ::testing::SizeIs(2)) << "one line per run: " << run.output;
  const auto page = contents(folder_.path() + "/page/index.html");
  EXPECT_THAT(page, AllOf(HasSubstr("On 4 ranks a step takes"), HasSubstr("2 ranks: "), HasSubstr("4 ranks: "),
                          HasSubstr("unknown"), Not(HasSubstr("No sweep"))));
}

// The second number of ranks is the wrong one: an error after the first run would waste its time.
TEST_F(UserProgramTest, ASweepIsCheckedBeforeAnyOfItsRuns) {
  const auto overwriting =
      sim_run({"--ranks", "2,4", "--timeline", folder_.path() + "/timeline"}, training_in_a_new_folder(folder_));
  EXPECT_EQ(overwriting.exit_code, 2);
  EXPECT_THAT(overwriting.error, HasSubstr("--ranks 2,4: the runs would overwrite each other's --timeline"));
  const auto too_large = sim_run({"--ranks", "2,16", "--network", source("configs/sim/networks/nvlink_8.yaml")},
                                 training_in_a_new_folder(folder_));
  EXPECT_EQ(too_large.exit_code, 2);
  EXPECT_THAT(too_large.error, AllOf(HasSubstr("the topology holds 8 ranks"), HasSubstr("16")));
  EXPECT_THAT(folder_.files(), IsEmpty());
}

TEST_F(UserProgramTest, ASweepEndsWithTheFirstRunThatFails) {
  const auto run = sim_run({"--ranks", "2,3"}, {bin("faulty_program"), "throw", folder_.path()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, Not(HasSubstr("rank 2")));
  EXPECT_THAT(folder_.files(), ::testing::SizeIs(1)) << "the second run did not start";
}

// A common slip. The message shows the command as it should be, and nothing is started.
TEST_F(UserProgramTest, AProgramWithoutTheDashesIsRecognised) {
  for (const auto& options :
       {std::vector<std::string>{"--ranks", "2"}, {"explore", "--ranks", "2", "--schedules", "3"}}) {
    std::vector<std::string> command{bin("sim-run")};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {bin("faulty_program"), "ok", folder_.path()});
    const auto run = run_command(command, {.limit = kLimit});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.error, HasSubstr(bin("faulty_program") + " is a program; put `--` before it: sim-run"));
    EXPECT_THAT(run.error, HasSubstr(" -- " + bin("faulty_program") + " ok " + folder_.path()));
  }
  EXPECT_THAT(folder_.files(), IsEmpty());
}

// The right names come from other launchers: torchrun's --nproc-per-node and Accelerate's --num_processes.
TEST_F(UserProgramTest, AMisspelledOptionIsAnsweredWithTheNearest) {
  for (const auto& [given, meant] :
       {std::pair("--num_procs", "--ranks"), std::pair("--num_processes", "--ranks"),
        std::pair("--nproc-per-node", "--ranks"), std::pair("--rank", "--ranks"), std::pair("--fault", "--faults")}) {
    const auto program = sim_run({given, "2"}, {bin("faulty_program"), "ok", folder_.path()});
    EXPECT_EQ(program.exit_code, 2);
    EXPECT_THAT(program.error, HasSubstr("did you mean " + std::string(meant) + "?")) << given;
    const auto experiment =
        run_command({bin("sim-run"), given, "2", source("configs/train/fashion_mnist.yaml")}, {.limit = kLimit});
    EXPECT_EQ(experiment.exit_code, 2);
    EXPECT_THAT(experiment.error, HasSubstr("did you mean " + std::string(meant) + "?")) << given;
  }
  const auto launch =
      run_command({bin("accel"), "launch", "--num_procs", "2", bin("faulty_program")}, {.limit = kLimit});
  EXPECT_EQ(launch.exit_code, 2);
  EXPECT_THAT(launch.error, HasSubstr("did you mean 'num_processes'?"));
}

TEST_F(UserProgramTest, RejectedOptionsStartNothing) {
  const auto run = sim_run({"--trace", "x"}, {bin("faulty_program"), "ok", folder_.path()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(folder_.files(), IsEmpty());
}

// Runs the program with the variable that sim-run passes to it. A user may set it, so it must be validated.
CommandResult run_with_request(const std::string& request, const TemporaryFolder& folder) {
  return run_command({bin("faulty_program"), "ok", folder.path()},
                     {.environment = {{"ACCEL_SIM", request}}, .limit = kLimit});
}

// Accelerate's launcher accepts both spellings, and users are used to it.
TEST_F(UserProgramTest, OptionsMayHaveUnderscores) {
  const auto run = sim_run({"--seed_schedule", "3", "--schedule", "random", "--ranks", "2"},
                           {bin("faulty_program"), "ok", folder_.path()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
}

TEST_F(UserProgramTest, DevicesOfACppProgramAreNotMapped) {
  for (const auto& options : std::vector<std::vector<std::string>>{{"--map-cuda"}, {"--map-cuda", "--processes"}}) {
    const auto run = sim_run(options, {bin("faulty_program"), "ok", folder_.path()});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.error, HasSubstr("--map-cuda: maps devices of Python programs only"));
  }
  EXPECT_THAT(folder_.files(), IsEmpty()) << "no rank has started";
}

// The variable is the interface between sim-run and a program, and a debugger may start the program with it.
TEST_F(UserProgramTest, RequestSetByHandMakesTheRanks) {
  const auto run = run_with_request(R"({"ranks":5})", folder_);
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), ::testing::SizeIs(5));
}

TEST_F(UserProgramTest, MalformedRequestIsExitCodeTwoWithAllProblems) {
  for (const auto* request : {"5", "{", "sim"}) {
    const auto run = run_with_request(request, folder_);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.error, HasSubstr("ACCEL_SIM: expected one JSON object"));
  }
  const auto run = run_with_request(R"({"rank":3,"backend":"mpi","acknowledge":-2})", folder_);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("ranks: missing"), HasSubstr("backend: expected sim, gloo, nccl, got 'mpi'"),
                               HasSubstr("acknowledge: expected 0 or more, got -2"), HasSubstr("rank: unknown key")));
  const auto real = run_with_request(R"({"ranks":2,"backend":"gloo","schedule":"random"})", folder_);
  EXPECT_EQ(real.exit_code, 2);
  EXPECT_THAT(real.error, HasSubstr("--schedule: only the simulator supports this option"));
  EXPECT_THAT(run_with_request(R"({"ranks":0})", folder_).error, HasSubstr("ranks: expected 1 or more, got 0"));
  EXPECT_THAT(run_with_request(R"({"ranks":2,"acknowledge":77})", folder_).error, HasSubstr("descriptor 77"));
  EXPECT_THAT(folder_.files(), IsEmpty()) << "no rank has started";
}

// With SIGCHLD ignored, waitpid returns no status of a child. Such parents are init scripts and some CI runners.
TEST_P(UserProgramBackendTest, AParentThatIgnoresSigchldDoesNotMakeItHang) {
  const auto run = run_command({"/bin/sh", "-c", "trap '' CHLD; exec \"$0\" \"$@\"", bin("sim-run"), "--ranks", "3",
                                "--backend", GetParam(), "--", bin("faulty_program"), "ok", folder_.path()},
                               {.limit = kLimit});
  EXPECT_EQ(run.exit_code, 0) << run.error;
}

}  // namespace
}  // namespace accel::testing::user_program_test
