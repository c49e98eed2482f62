// `accel launch` as a user runs it: which variables reach the ranks, where their output goes, and what is rejected
// as wrong usage before anything starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <set>

#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::launch_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class LaunchTest : public LaunchFixture {};

// --- variables of the ranks ---

TEST_F(LaunchTest, CpuStartsAsManyRanksAsAskedFor) {
  const auto run = shell({"--cpu", "--num_processes", "4"},
                         "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $ACCELERATE_USE_CPU");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(lines_of(run.output), UnorderedElementsAre("[rank 0] 0 4 0 4 True", "[rank 1] 1 4 1 4 True",
                                                         "[rank 2] 2 4 2 4 True", "[rank 3] 3 4 3 4 True"));
}

// The program may have options with the names of the launcher's own.
TEST_F(LaunchTest, EverythingAfterTheProgramBelongsToTheProgram) {
  const auto run = launch({"--num-processes=1", "--debug", "/bin/echo", "--num_processes", "7", "--cpu", "--", "-q"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, "--num_processes 7 --cpu -- -q\n");
}

// A single process must behave as if started without a launcher, for example for debuggers and progress bars.
TEST_F(LaunchTest, OneProcessHasNoRankAndWritesToTheTerminalItself) {
  const auto run = shell({}, "echo ${RANK:-none} ${WORLD_SIZE:-none}");
  EXPECT_EQ(run.output, "none none\n");
}

// The precedence of accelerate/commands/launch.py. Each line below removes the strongest remaining source.
TEST_F(LaunchTest, FlagsPrecedeTheFileWhichPrecedesTheEnvironment) {
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

// With --cpu Python ignores the default file, too: its settings may be for GPUs.
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

// The printed lines are commands that a user can run by hand, one for each rank.
TEST_F(LaunchTest, DryRunPrintsWhatWouldRunAndRunsNothing) {
  const auto run = shell({"--cpu", "--num_processes", "2", "--dry_run"}, "touch '" + folder_.path("ran") + "'");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_FALSE(fs::exists(folder_.path("ran")));
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1], AllOf(StartsWith("env "), HasSubstr(" RANK=1 "), HasSubstr(" WORLD_SIZE=2 "),
                              HasSubstr(" MASTER_PORT=29500 "), HasSubstr(" /bin/sh -c 'touch ")));
  // The printed commands are those that run: pasted into a shell, one of them does the work.
  EXPECT_EQ(run_command({"/bin/sh", "-c", lines[1]}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_.path("ran")));
}

// The folders are those of torchrun, so that tools that read them keep working.
TEST_F(LaunchTest, LogsHoldWhatEveryRankWroteAndTeePicksStreams) {
  const auto all =
      shell({"--cpu", "--num_processes", "2", "--log_dir", folder_.path("all")}, "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(all.exit_code, 0) << all.error;
  EXPECT_EQ(read_file(folder_.path("all/attempt_0/rank_1/stdout.log")), "out 1\n");
  EXPECT_EQ(read_file(folder_.path("all/attempt_0/rank_0/stderr.log")), "err 0\n");
  EXPECT_THAT(lines_of(all.output), UnorderedElementsAre("[rank 0] out 0", "[rank 1] out 1"));
  // --tee 0:1,1:2 selects the stream per rank: stdout of rank 0, stderr of rank 1.
  const auto some = shell(
      {"--cpu", "--num_processes", "2", "--log_dir", folder_.path("some"), "--tee", "0:1,1:2", "--role", "trainer"},
      "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(some.exit_code, 0) << some.error;
  EXPECT_TRUE(fs::exists(folder_.path("some/attempt_0/rank_0/stdout.log")));
  EXPECT_FALSE(fs::exists(folder_.path("some/attempt_0/rank_0/stderr.log")));
  EXPECT_TRUE(fs::exists(folder_.path("some/attempt_0/rank_1/stderr.log")));
}

// Two ranks on the same CPUs would halve each other's speed.
TEST_F(LaunchTest, AffinityGivesEachRankItsOwnCpus) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one CPU";
  const auto run = shell({"--cpu", "--num_processes", "2", "--enable_cpu_affinity", "--no_prefix"},
                         "taskset -cp $$ | sed 's/.*: //'");
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 2U) << run.error;
  EXPECT_NE(lines[0], lines[1]);
}

// --- wrong usage ---

TEST_F(LaunchTest, AllProblemsOfTheFlagsAreInOneMessage) {
  const auto run = launch({"--num_proceses", "2", "--num_machines", "two", "--tpu", "--mixed_precision=fp4", "-m",
                           "--cpu=yes", "/bin/true"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error,
              AllOf(HasSubstr("--num_proceses: unknown flag; did you mean 'num_processes'?"),
                    HasSubstr("--num_machines: expected an integer, got 'two'"),
                    HasSubstr("--tpu: unsupported; LibTorch has no TPU"),
                    HasSubstr("--mixed_precision: expected no, fp16, bf16, fp8, got 'fp4'"),
                    HasSubstr("-m: runs a Python module"), HasSubstr("--cpu: does not accept a value, got 'yes'")));
}

// Combinations that are wrong although each flag is valid. Started anyway, most of them would hang at the
// rendezvous.
TEST_F(LaunchTest, ImpossibleValuesAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--multi_gpu", "--num_processes", "1"}, "--multi_gpu: expected --num_processes 2 or more, got 1"},
      {{"--cpu", "--multi_gpu", "--num_processes", "2"}, "--cpu, --multi_gpu exclude each other"},
      {{"--use_fsdp", "--use_deepspeed", "--use_megatron_lm"},
       "--use_fsdp, --use_deepspeed, --use_megatron_lm exclude each other"},
      {{"--num_processes", "3", "--num_machines", "2", "--main_process_ip", "127.0.0.1"},
       "3 is not divisible by 2 machines"},
      {{"--num_processes", "2", "--num_machines", "2"}, "main_process_ip: missing"},
      {{"--num_processes", "2", "--num_machines", "2", "--main_process_ip", "127.0.0.1", "--machine_rank", "2"},
       "machine_rank: expected 0 to 1, got 2"},
      {{"--rdzv_backend", "c10d"}, "rdzv_backend: 'c10d' is unsupported; expected static"},
      {{"--fsdp_version", "2"}, "--fsdp_version: needs --use_fsdp"},
      {{"--fp8_pad_inner_dim", "true"}, "--fp8_pad_inner_dim: needs --mixed_precision fp8"},
      {{"--mixed_precision", "fp8", "--fp8_backend", "TE"}, "fp8_backend: TE is a Python package; expected AO"},
      {{"--parallelism_config_tp_size", "2"}, "--parallelism_config_tp_size: needs --use_parallelism_config"},
      {{"--megatron_lm_tp_degree", "2"}, "--megatron_lm_tp_degree: needs --use_megatron_lm"},
      {{"--use_megatron_lm", "--use_parallelism_config"}, "--use_parallelism_config: excludes --use_megatron_lm"},
      {{"--tee", "3"}, "--tee: needs --log_dir"},
      {{"--max_restarts", "-1"}, "--max_restarts: expected 0 or more, got -1"},
      {{"--config_file", "/no/such/file.yaml"}, "/no/such/file.yaml"},
      {{"--main_process_port", "70000"}, "main_process_port: expected 0 to 65535, got 70000"}};
  for (const auto& [flags, message] : cases) {
    const auto run = launch(flags + Words{"/bin/true"});
    EXPECT_EQ(run.exit_code, 2) << message;
    EXPECT_THAT(run.error, HasSubstr(message));
  }
  EXPECT_THAT(launch({"--cpu"}).error, HasSubstr("PROGRAM is missing"));
}

TEST_F(LaunchTest, MissingProgramAndNonExecutableFileAreUsageErrors) {
  const auto file = folder_.write("data.txt", "no program\n");
  for (const std::string count : {"1", "2"}) {
    const auto missing = launch({"--cpu", "--num_processes", count, "./no-such-program"});
    EXPECT_EQ(missing.exit_code, 2);
    EXPECT_THAT(missing.error,
                HasSubstr("cannot run './no-such-program': No such file or directory; expected the path of a program"));
    const auto data = launch({"--cpu", "--num_processes", count, file});
    EXPECT_EQ(data.exit_code, 2);
    EXPECT_THAT(data.error, AllOf(HasSubstr("Permission denied"), HasSubstr("chmod +x")));
  }
}

TEST_F(LaunchTest, ABusyPortIsAnErrorOnlyIfItWasNamed) {
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

// Each launcher must reserve its port until its ranks listen. Otherwise two launchers could choose the same free
// port.
TEST_F(LaunchTest, TwoLaunchersAtOnceDoNotTakeTheSamePort) {
  const auto start = [&] {
    return std::async(std::launch::async, [&] {
      // Waiting for four processes keeps both launches alive at the same time.
      return shell({"--cpu", "--num_processes", "2", "--no_prefix"}, leaves_number() + awaits(4) + "echo $MASTER_PORT");
    });
  };
  fs::create_directories(folder_.path("pids"));
  auto one = start(), two = start();
  const auto ports = lines_of(one.get().output + two.get().output);
  ASSERT_EQ(ports.size(), 4U);
  EXPECT_EQ(std::set<std::string>(ports.begin(), ports.end()).size(), 2U);
}

}  // namespace
}  // namespace accel::testing::launch_test
