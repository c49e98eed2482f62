// `accel launch` as a user runs it: what reaches the ranks, and what becomes of them. Several machines are several
// launchers on the loopback interface here; machines_test has real networks between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "backends/launch/ports.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::launch_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kLimit{60};

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class LaunchTest : public ::testing::Test {
 protected:
  // No config file of whoever runs the test, and the variables that a rank would have are not those of a launcher
  // around it.
  [[nodiscard]] std::map<std::string, std::string> clean(std::map<std::string, std::string> environment = {}) const {
    environment.try_emplace("HF_HOME", folder_.path("home"));
    environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
    environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    return environment;
  }
  [[nodiscard]] CommandResult launch(const Words& arguments,
                                     const std::map<std::string, std::string>& environment = {}) const {
    return run_command(Words{bin("accel"), "launch"} + arguments, {.environment = clean(environment), .limit = kLimit});
  }
  [[nodiscard]] CommandResult shell(const Words& flags, const std::string& script,
                                    const std::map<std::string, std::string>& environment = {}) const {
    return launch(flags + Words{"/bin/sh", "-c", script}, environment);
  }
  // Every process that has left its number in the folder `pids` has ended within two seconds.
  void expect_no_process_left(std::size_t count) const {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path("pids"))) {
      ++found;
      pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, std::stol(entry.path().filename()), 0)), POLLIN, 0};
      EXPECT_TRUE(ended.fd < 0 || poll(&ended, 1, 2000) == 1) << "process " << entry.path().filename() << " is left";
      close(ended.fd);
    }
    EXPECT_EQ(found, count);
  }
  // The beginning of a script whose processes leave their numbers.
  [[nodiscard]] std::string leaves_number() const {
    fs::create_directories(folder_.path("pids"));
    return "echo > " + folder_.path("pids") + "/$$; ";
  }
  [[nodiscard]] std::string awaits(int count) const {
    return "while [ $(ls " + folder_.path("pids") + " | wc -l) -lt " + std::to_string(count) +
           " ]; do sleep 0.02; done; ";
  }

  TemporaryFolder folder_;
};

// --- what ranks are told ---------------------------------------------------------------------------------------------

TEST_F(LaunchTest, CpuStartsAsManyRanksAsAskedFor) {
  const auto run = shell({"--cpu", "--num_processes", "4"},
                         "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $ACCELERATE_USE_CPU");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), UnorderedElementsAre("[rank 0] 0 4 0 4 True", "[rank 1] 1 4 1 4 True",
                                                         "[rank 2] 2 4 2 4 True", "[rank 3] 3 4 3 4 True"));
}

TEST_F(LaunchTest, EverythingBehindTheProgramIsThePrograms) {
  const auto run = launch({"--num-processes=1", "--debug", "/bin/echo", "--num_processes", "7", "--cpu", "--", "-q"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, "--num_processes 7 --cpu -- -q\n");
}

TEST_F(LaunchTest, OneProcessIsNoRankAndWritesToTheTerminalItself) {
  const auto run = shell({}, "echo ${RANK:-none} ${WORLD_SIZE:-none}");
  EXPECT_EQ(run.output, "none none\n");
}

TEST_F(LaunchTest, AFlagBeatsTheFileTheFileBeatsTheEnvironmentAndThatTheDefault) {
  const auto file = folder_.write(
      "config.yaml",
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nmixed_precision: bf16\nmain_process_port: 0\n");
  const std::string say = "[ $RANK = 0 ] && echo $WORLD_SIZE $ACCELERATE_MIXED_PRECISION";
  const std::map<std::string, std::string> variable{{"ACCELERATE_MIXED_PRECISION", "fp16"}};
  const Words two{"--no_prefix", "--cpu", "--num_processes", "3"};
  EXPECT_EQ(shell({"--no_prefix", "--config_file", file, "--num_processes", "3", "--mixed_precision", "no"},
                  say + " || true", variable)
                .output,
            "3 no\n");
  EXPECT_EQ(shell({"--no_prefix", "--config_file", file}, say + " || true", variable).output, "2 bf16\n");
  EXPECT_EQ(shell(two, say + " || true", variable).output, "3 fp16\n");
  EXPECT_EQ(shell(two, say + " || true").output, "3 no\n");
}

TEST_F(LaunchTest, TheDefaultFileIsReadButNotWithCpu) {
  fs::create_directories(folder_.path("home/accelerate"));
  folder_.write("home/accelerate/default_config.yaml",
                "distributed_type: NO\nnum_processes: 2\nmixed_precision: bf16\n");
  EXPECT_EQ(lines_of(shell({}, "echo $ACCELERATE_MIXED_PRECISION").output).size(), 2U);
  EXPECT_EQ(shell({"--cpu"}, "echo $ACCELERATE_MIXED_PRECISION").output, "no\n");
}

TEST_F(LaunchTest, FlagsOfShardingBecomeTheirVariables) {
  const auto run = shell(
      {"--use_fsdp", "--fsdp-version", "2", "--fsdp_reshard_after_forward", "false", "--gradient_accumulation_steps",
       "4"},
      "echo $ACCELERATE_USE_FSDP $FSDP_VERSION $FSDP_RESHARD_AFTER_FORWARD $ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  EXPECT_EQ(run.output, "true 2 false 4\n") << run.error;
}

TEST_F(LaunchTest, DryRunPrintsWhatWouldRunAndRunsNothing) {
  const auto run = shell({"--cpu", "--num_processes", "2", "--dry_run"}, "touch '" + folder_.path("ran") + "'");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_FALSE(fs::exists(folder_.path("ran")));
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1], AllOf(StartsWith("env "), HasSubstr(" RANK=1 "), HasSubstr(" WORLD_SIZE=2 "),
                              HasSubstr(" MASTER_PORT=29500 "), HasSubstr(" /bin/sh -c 'touch ")));
  // What is printed is what runs: pasted into a shell it does it.
  EXPECT_EQ(run_command({"/bin/sh", "-c", lines[1]}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_.path("ran")));
}

TEST_F(LaunchTest, LogsHoldWhatEveryRankWroteAndTeePicksStreams) {
  const auto all =
      shell({"--cpu", "--num_processes", "2", "--log_dir", folder_.path("all")}, "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(all.exit_code, 0) << all.error;
  EXPECT_EQ(read_file(folder_.path("all/attempt_0/rank_1/stdout.log")), "out 1\n");
  EXPECT_EQ(read_file(folder_.path("all/attempt_0/rank_0/stderr.log")), "err 0\n");
  EXPECT_THAT(lines_of(all.output), UnorderedElementsAre("[rank 0] out 0", "[rank 1] out 1"));
  const auto some = shell(
      {"--cpu", "--num_processes", "2", "--log_dir", folder_.path("some"), "--tee", "0:1,1:2", "--role", "trainer"},
      "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(some.exit_code, 0) << some.error;
  EXPECT_TRUE(fs::exists(folder_.path("some/attempt_0/rank_0/stdout.log")));
  EXPECT_FALSE(fs::exists(folder_.path("some/attempt_0/rank_0/stderr.log")));
  EXPECT_TRUE(fs::exists(folder_.path("some/attempt_0/rank_1/stderr.log")));
}

TEST_F(LaunchTest, AffinityGivesEachRankCpusOfItsOwn) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one CPU";
  const auto run = shell({"--cpu", "--num_processes", "2", "--enable_cpu_affinity", "--no_prefix"},
                         "taskset -cp $$ | sed 's/.*: //'");
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 2U) << run.error;
  EXPECT_NE(lines[0], lines[1]);
}

// --- wrong usage -----------------------------------------------------------------------------------------------------

TEST_F(LaunchTest, AllProblemsOfTheFlagsAreInOneMessage) {
  const auto run = launch({"--num_proceses", "2", "--num_machines", "two", "--tpu", "--mixed_precision=fp4", "-m",
                           "--cpu=yes", "/bin/true"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error,
              AllOf(HasSubstr("--num_proceses: unknown flag; did you mean 'num_processes'?"),
                    HasSubstr("--num_machines: expected an integer, got 'two'"), HasSubstr("--tpu: there are no TPUs"),
                    HasSubstr("--mixed_precision: expected no, fp16, bf16, fp8, got 'fp4'"),
                    HasSubstr("-m: it runs a Python module"), HasSubstr("--cpu: takes no value, got 'yes'")));
}

TEST_F(LaunchTest, ValuesThatCannotBeAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--multi_gpu", "--num_processes", "1"}, "--multi_gpu: 1 process; expected --num_processes 2 or more"},
      {{"--cpu", "--multi_gpu", "--num_processes", "2"}, "--cpu, --multi_gpu exclude each other"},
      {{"--use_fsdp", "--use_deepspeed"}, "--use_fsdp, --use_deepspeed exclude each other"},
      {{"--num_processes", "3", "--num_machines", "2", "--main_process_ip", "127.0.0.1"},
       "3 do not divide by 2 machines"},
      {{"--num_processes", "2", "--num_machines", "2"}, "main_process_ip: missing"},
      {{"--num_processes", "2", "--num_machines", "2", "--main_process_ip", "127.0.0.1", "--machine_rank", "2"},
       "machine_rank: expected 0 to 1, got 2"},
      {{"--rdzv_backend", "c10d"}, "rdzv_backend: c10d: not built; expected static"},
      {{"--fsdp_version", "2"}, "--fsdp_version: counts with --use_fsdp only"},
      {{"--fp8_pad_inner_dim", "true"}, "--fp8_pad_inner_dim: counts with --mixed_precision fp8 only"},
      {{"--mixed_precision", "fp8", "--fp8_backend", "TE"}, "fp8_backend: TE is a Python package; expected AO"},
      {{"--use_parallelism_config"}, "--use_parallelism_config: needs --use_fsdp and --fsdp_version 2"},
      {{"--tee", "3"}, "--tee: needs --log_dir"},
      {{"--max_restarts", "-1"}, "--max_restarts: expected 0 or more, got -1"},
      {{"--config_file", "/no/such/file.yaml"}, "/no/such/file.yaml"},
      {{"--main_process_port", "70000"}, "main_process_port: expected 0 to 65535, got 70000"}};
  for (const auto& [flags, message] : cases) {
    const auto run = launch(flags + Words{"/bin/true"});
    EXPECT_EQ(run.exit_code, 2) << message;
    EXPECT_THAT(run.error, HasSubstr(message));
  }
  EXPECT_THAT(launch({"--cpu"}).error, HasSubstr("no PROGRAM"));
}

TEST_F(LaunchTest, MissingProgramAndNonExecutableFileAreUsageErrors) {
  const auto file = folder_.write("data.txt", "no program\n");
  for (const std::string count : {"1", "2"}) {
    const auto missing = launch({"--cpu", "--num_processes", count, "./no-such-program"});
    EXPECT_EQ(missing.exit_code, 2);
    EXPECT_THAT(missing.error, HasSubstr("cannot run './no-such-program': No such file or directory"));
    const auto data = launch({"--cpu", "--num_processes", count, file});
    EXPECT_EQ(data.exit_code, 2);
    EXPECT_THAT(data.error, AllOf(HasSubstr("Permission denied"), HasSubstr("chmod +x")));
  }
}

TEST_F(LaunchTest, ABusyPortIsAUsageErrorIfNamedAndAnotherIsTakenIfNot) {
  const BusyPort busy;
  const auto port = std::to_string(busy.port());
  const auto named = launch({"--cpu", "--num_processes", "2", "--main_process_port", port, "/bin/true"});
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_THAT(named.error, HasSubstr("port " + port + " is in use"));
  const auto machine = launch({"--cpu", "--num_processes", "2", "--num_machines", "2", "--main_process_ip", "127.0.0.1",
                               "--main_process_port", port, "/bin/true"});
  EXPECT_EQ(machine.exit_code, 2);
  EXPECT_THAT(machine.error, HasSubstr("port " + port + ": Address already in use"));
  const auto any = shell({"--cpu", "--num_processes", "2", "--main_process_port", "0", "--no_prefix"},
                         "[ $MASTER_PORT -gt 0 ] && echo $MASTER_PORT");
  EXPECT_EQ(any.exit_code, 0) << any.error;
  EXPECT_EQ(lines_of(any.output).size(), 2U);
}

TEST_F(LaunchTest, TwoLaunchersAtOnceDoNotTakeTheSamePort) {
  const auto start = [&] {
    return std::async(std::launch::async, [&] {
      return shell({"--cpu", "--num_processes", "2", "--no_prefix"}, leaves_number() + awaits(4) + "echo $MASTER_PORT");
    });
  };
  fs::create_directories(folder_.path("pids"));
  auto one = start(), two = start();
  const auto ports = lines_of(one.get().output + two.get().output);
  ASSERT_EQ(ports.size(), 4U);
  EXPECT_EQ(std::set<std::string>(ports.begin(), ports.end()).size(), 2U);
}

// --- how ranks end ---------------------------------------------------------------------------------------------------

TEST_F(LaunchTest, ADeadRankEndsTheRunAndIsToldLast) {
  const auto run =
      shell({"--cpu", "--num_processes", "4"},
            leaves_number() + awaits(4) + "if [ $RANK = 2 ]; then echo the ink has run out >&2; exit 5; fi; sleep 100");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(last_line(run.error), "accel launch: rank 2 ended with exit code 5: the ink has run out");
  expect_no_process_left(4);
}

TEST_F(LaunchTest, ARankKilledIsToldByItsSignal) {
  const auto run =
      shell({"--cpu", "--num_processes", "3"}, leaves_number() + awaits(3) + "[ $RANK = 1 ] && kill -9 $$; sleep 100");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(last_line(run.error), HasSubstr("rank 1 was killed by signal 9 (Killed)"));
  expect_no_process_left(3);
}

TEST_F(LaunchTest, ExitCodeTwoOfARankIsAUsageError) {
  EXPECT_EQ(shell({"--cpu", "--num_processes", "2"}, "exit 2").exit_code, 2);
}

TEST_F(LaunchTest, ARankThatEndsEarlyWhileOthersWaitIsNamed) {
  fs::create_directories(folder_.path("pids"));
  const auto run = launch({"--cpu", "--num_processes", "3", "--main_process_port", "0", bin("faulty_program"), "leave",
                           folder_.path("pids")},
                          {{"ACCEL_TIMEOUT_SECONDS", "10"}});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(last_line(run.error), AllOf(HasSubstr("all_reduce"), HasSubstr("(rank 1 ended with exit code 0)")));
  expect_no_process_left(3);
}

TEST_F(LaunchTest, WhatARankHasStartedEndsWithIt) {
  const auto run =
      shell({"--cpu", "--num_processes", "2"}, leaves_number() + "(" + "sh -c '" + leaves_number() + "sleep 100'" +
                                                   ") & " + awaits(4) + "[ $RANK = 1 ] && exit 3; wait");
  EXPECT_EQ(run.exit_code, 1);
  expect_no_process_left(4);
}

class SignalTest : public LaunchTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGTERM, SIGINT, SIGHUP),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

// The launcher gets the signal alone, as from `kill` or a scheduler.
TEST_P(SignalTest, ReachesEveryChildAndEndsTheLauncherToo) {
  for (const std::string count : {"1", "3"}) {
    fs::remove_all(folder_.path("pids"));
    const auto heard = folder_.path("heard" + count);
    const auto name = std::string(sigabbrev_np(GetParam()));
    const auto program = folder_.write("program", "#!/bin/bash\ntrap 'echo heard >> " + heard + "; kill $!; exit 0' " +
                                                      name + "\nsleep 100 & \n" + leaves_number() + "\nwait\n");
    fs::permissions(program, fs::perms::owner_all);
    // A shell starts what runs behind with INT ignored: setsid's child does not.
    const auto script =
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\np = "
        "subprocess.Popen(sys.argv[3:])\nwhile len(os.listdir(sys.argv[1])) < " +
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

TEST_F(LaunchTest, ALauncherThatIsKilledLeavesNoProcess) {
  const auto script = "'" + bin("accel") + "' launch --cpu --num_processes 3 /bin/sh -c '" + leaves_number() +
                      "exec sleep 100' & pid=$!; " + awaits(3) + "kill -9 $pid; wait $pid";
  const auto run = run_command({"/bin/sh", "-c", script}, {.environment = clean(), .limit = kLimit});
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
  expect_no_process_left(3);
}

// --- starting again --------------------------------------------------------------------------------------------------

TEST_F(LaunchTest, EveryRankBeginsAnewWithTheNextNumberAndAnotherPort) {
  const auto run = shell({"--cpu", "--num_processes", "3", "--max_restarts", "2", "--no_prefix"},
                         "echo $RANK $TORCHELASTIC_RESTART_COUNT; echo $MASTER_PORT >> " + folder_.path("ports") +
                             "; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 7; [ $TORCHELASTIC_RESTART_COUNT = 0 "
                             "] && sleep 100; exit 0");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), UnorderedElementsAre("0 0", "1 0", "2 0", "0 1", "1 1", "2 1"));
  EXPECT_THAT(run.error, HasSubstr("rank 1 ended with exit code 7; starting again (1 of at most 2)"));
  const auto read = lines_of(read_file(folder_.path("ports")));
  EXPECT_EQ(std::set<std::string>(read.begin(), read.end()).size(), 2U);
}

TEST_F(LaunchTest, EveryAttemptHasLogsOfItsOwn) {
  const auto run =
      shell({"--cpu", "--num_processes", "2", "--max_restarts", "1", "--log_dir", folder_.path("logs")},
            "echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; touch " +
                folder_.path("") + "/wrote$RANK; while [ ! -e " + folder_.path("wrote0") + " ] || [ ! -e " +
                folder_.path("wrote1") + " ]; do sleep 0.02; done; exit 1");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  for (const std::string attempt : {"0", "1"}) {
    for (const std::string rank : {"0", "1"})
      EXPECT_EQ(read_file(folder_.path("logs/attempt_" + attempt + "/rank_" + rank + "/stdout.log")),
                rank + " " + attempt + "\n");
  }
}

TEST_F(LaunchTest, RestartsAreUsedUpAndTheLastFailureIsTold) {
  const auto run = shell({"--cpu", "--num_processes", "2", "--max_restarts", "2"},
                         "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 4");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(last_line(run.error), AllOf(HasSubstr("ended with exit code 4"), HasSubstr("(after 2 restarts)")));
}

TEST_F(LaunchTest, ATrainingThatIsKilledGoesOnFromItsCheckpointToTheSameParameters) {
  const Words flags{
      "--cpu", "--num_processes", "4", "--no_prefix", "--main_process_port", "0", "--num_cpu_threads_per_process", "1"};
  fs::create_directories(folder_.path("whole"));
  fs::create_directories(folder_.path("cut"));
  const auto whole = launch(flags + Words{bin("launched_training"), folder_.path("whole")});
  EXPECT_EQ(whole.exit_code, 0) << whole.error;
  folder_.write("cut/pause", "");
  const auto killer = std::async(std::launch::async, [&] {
    while (!fs::exists(folder_.path("cut/reached.2")) || read_file(folder_.path("cut/reached.2")).empty())
      usleep(10'000);
    kill(static_cast<pid_t>(std::stol(read_file(folder_.path("cut/reached.2")))), SIGKILL);
  });
  const auto cut = launch(flags + Words{"--max_restarts", "1", bin("launched_training"), folder_.path("cut")});
  EXPECT_EQ(cut.exit_code, 0) << cut.error;
  EXPECT_THAT(cut.error, HasSubstr("rank 2 was killed by signal 9"));
  EXPECT_THAT(cut.output, HasSubstr("goes on at step 20"));
  EXPECT_EQ(last_line(cut.output), last_line(whole.output));
  EXPECT_THAT(last_line(whole.output), StartsWith("parameters "));
}

// --- several machines, each a launcher on the loopback interface -----------------------------------------------------

class SeveralLaunchersTest : public LaunchTest {
 protected:
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

TEST_F(SeveralLaunchersTest, RanksAreNumberedOverMachines) {
  const auto runs =
      launch_all(3, 2, {}, {"/bin/sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK"});
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(runs[0].output), UnorderedElementsAre("0/6 0/2 0", "1/6 1/2 0"));
  EXPECT_THAT(lines_of(runs[2].output), UnorderedElementsAre("4/6 0/2 2", "5/6 1/2 2"));
}

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

TEST_F(SeveralLaunchersTest, AllMachinesBeginAnewTogether) {
  const auto runs = launch_all(2, 2, {"--max_restarts", "1"},
                               {"/bin/sh", "-c",
                                "echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit "
                                "0; [ $RANK = 3 ] && exit 9; sleep 100"});
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(runs[0].output), UnorderedElementsAre("0 0", "1 0", "0 1", "1 1"));
  EXPECT_THAT(lines_of(runs[1].output), UnorderedElementsAre("2 0", "3 0", "2 1", "3 1"));
}

TEST_F(SeveralLaunchersTest, AMachineThatDoesNotComeIsNamed) {
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
  EXPECT_THAT(main.error, HasSubstr("machines 1, 2 of 3 did not come within 0.5 s"));
  const auto other = launch(place + Words{"--machine_rank", "1", "/bin/true"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.error, HasSubstr("machine 0 did not answer at 127.0.0.1:"));
}

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

TEST_F(SeveralLaunchersTest, TrainingOnTwoMachinesIsThatOfOneBitForBit) {
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

// --- other launchers -------------------------------------------------------------------------------------------------

TEST_F(LaunchTest, MpirunStartsTheSameBinary) {
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

// srun gives its ranks these variables; there is no SLURM to ask here.
TEST_F(LaunchTest, SlurmsVariablesMakeTheSameRanks) {
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

// The commands of the README as they stand there, with programs of the build on the PATH. What this machine has not is
// left out: GPUs, SLURM, Python's torchrun.
class ReadmeCommandsTest : public LaunchTest {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.path("work"));
    folder_.write("work/train", "#!/bin/sh\nmkdir -p $FOLDER\nexec '" + bin("launched_training") + "' $FOLDER\n");
    folder_.write("work/hosts", "localhost slots=4\n");
    fs::permissions(folder_.path("work/train"), fs::perms::owner_all);
  }
  static Words commands() {
    const auto readme = read_file(source("README.md"));
    const auto section = readme.substr(readme.find("## From a laptop to a cluster"));
    const auto begin = section.find("```\n") + 4;
    Words commands;
    for (const auto& line : lines_of(section.substr(begin, section.find("```", begin) - begin))) {
      const auto command = line.substr(0, line.find("  #"));
      if (!command.empty()) commands.push_back(command);
    }
    return commands;
  }
  [[nodiscard]] CommandResult run(std::string command, const std::string& folder, const std::string& port) const {
    for (const auto& [shown, here] : {std::pair<std::string, std::string>("10.0.0.1", "127.0.0.1"), {"29500", port}}) {
      if (const auto at = command.find(shown); at != std::string::npos) command.replace(at, shown.size(), here);
    }
    const auto path = fs::path(bin("accel")).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
    return run_command({"/bin/sh", "-c", "cd " + folder_.path("work") + " && " + command},
                       {.environment = clean({{"PATH", path},
                                              {"FOLDER", folder},
                                              {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                              {"OMP_NUM_THREADS", "1"},
                                              {"MASTER_PORT", command.find("accel") == 0 ? "" : port}}),
                        .limit = kLimit});
  }
};

TEST_F(ReadmeCommandsTest, RunAsTheyStandThere) {
  int count = 0;
  std::optional<std::future<CommandResult>> first_machine;
  auto port = std::to_string(launcher::free_port());
  for (const auto& command : commands()) {
    if (command.find("--multi_gpu") != std::string::npos || command.starts_with("srun") ||
        command.starts_with("torchrun"))
      continue;
    ++count;
    const auto folder = folder_.path("run" + std::to_string(count));
    if (command.find("--machine_rank 0") != std::string::npos) {
      first_machine =
          std::async(std::launch::async, [=, this] { return run(command, folder_.path("machines"), port); });
      continue;
    }
    const bool is_second = command.find("--machine_rank 1") != std::string::npos;
    const auto result = run(command, is_second ? folder_.path("machines") : folder, port);
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.error;
    const auto of_main = is_second ? first_machine->get() : result;
    EXPECT_EQ(of_main.exit_code, 0) << of_main.error;
    EXPECT_THAT(last_line(of_main.output), HasSubstr("parameters ")) << command;
    if (is_second) first_machine.reset();
    port = std::to_string(launcher::free_port());
  }
  EXPECT_EQ(count, 7);
}

// --- accel test ------------------------------------------------------------------------------------------------------

TEST_F(LaunchTest, TheSelfTestIsASuccessInEveryWay) {
  for (const Words& flags : {Words{}, Words{"--cpu", "--num_processes", "3", "--main_process_port", "0"},
                             Words{"--sim", "--num_processes", "8"}}) {
    const auto run =
        run_command(Words{bin("accel"), "test"} + flags, {.environment = clean(), .limit = std::chrono::seconds(30)});
    EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
    EXPECT_EQ(last_line(run.output), "Test is a success! You are ready for your distributed training!");
    EXPECT_THAT(run.output, AllOf(HasSubstr("loaders in all modes: ok\n"), HasSubstr("11 of 11 checks passed on ")));
  }
}

// Parameters of a sharded model are compared whole; DeepSpeed clips; the environment may accumulate.
TEST_F(LaunchTest, TheSelfTestKnowsEveryPlugin) {
  for (const Words& flags :
       {Words{"--use_fsdp"}, Words{"--use_fsdp", "--fsdp_version", "2"}, Words{"--use_deepspeed", "--zero_stage", "3"},
        Words{"--use_deepspeed", "--gradient_accumulation_steps", "2"}}) {
    const auto run = run_command(Words{bin("accel"), "test", "--sim", "--num_processes", "4"} + flags,
                                 {.environment = clean(), .limit = std::chrono::seconds(60)});
    EXPECT_EQ(run.exit_code, 0) << flags[0] << run.output << run.error;
    EXPECT_THAT(run.output, HasSubstr("11 of 11 checks passed on "));
  }
}

TEST_F(LaunchTest, TheSelfTestUnderMpirunIsARankOfIt) {
  const auto run = run_command({"mpirun", "-np", "2", "--oversubscribe", bin("accel"), "test", "--inner"},
                               {.environment = clean({{"MASTER_PORT", std::to_string(launcher::free_port())}}),
                                .limit = std::chrono::seconds(30)});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("11 of 11 checks passed on 2 ranks, backend gloo"));
}

// A network that flips a bit of what a rank receives: the test must not pass.
TEST_F(LaunchTest, TheSelfTestNoticesABitThatFlips) {
  const auto faults =
      folder_.write("faults.yaml", "seed: 3\nfaults:\n  - {kind: bit_flip, rank: 1, when: {collective: 2}}\n");
  const auto run =
      run_command({bin("sim-run"), "--ranks", "4", "--faults", faults, "--", bin("accel"), "test", "--inner"},
                  {.environment = clean(), .limit = kLimit});
  EXPECT_NE(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output + run.error, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace accel::testing::launch_test
