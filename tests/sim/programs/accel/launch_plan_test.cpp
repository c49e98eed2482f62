// The plan of `accel launch`: which values reach the ranks, by which variable, from which source. It is a pure
// function of flags, file and environment, so precedence is tested here without starting processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "tests/sim/programs/accel/planned_launch.hpp"
#include "tests/support/property.hpp"

namespace accel::programs {
namespace {

using namespace planned_launch;

using accel::testing::expect_property;
using accel::testing::expect_property_fails;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
// Returns the value of a variable that a rank sees.
std::optional<std::string> seen(const LaunchPlan& plan, const Variables& environment, const std::string& name) {
  if (plan.job.environment.contains(name)) return plan.job.environment.at(name);
  if (environment.contains(name)) return environment.at(name);
  return plan.job.default_environment.contains(name) ? std::optional(plan.job.default_environment.at(name))
                                                     : std::nullopt;
}

// Ranks would train on the CPU without a word.
TEST(LaunchPlanTest, MultiGpuWithoutAGpuIsAnError) {
  EXPECT_THAT(problems_of_plan({"--multi_gpu", "--num_processes", "2"}), HasSubstr("CUDA finds no GPU"));
}

// A value that may come from a flag, the file, the environment or a default.
struct Layered {
  std::string flag, flag_value;
  std::function<void(LaunchConfig&)> in_file;
  std::string file_value, variable, default_value;
  Words more = {};
};

const std::vector<Layered> kLayered{
    {"mixed_precision", "bf16", [](LaunchConfig& config) { config.mixed_precision = "fp16"; }, "fp16",
     "ACCELERATE_MIXED_PRECISION", "no"},
    {"fsdp_version",
     "2",
     [](LaunchConfig& config) { config.fsdp_config["fsdp_version"] = std::string("1"); },
     "1",
     "FSDP_VERSION",
     "1",
     {"--use_fsdp"}},
    {"fsdp_offload_params",
     "true",
     [](LaunchConfig& config) { config.fsdp_config["fsdp_offload_params"] = false; },
     "false",
     "FSDP_OFFLOAD_PARAMS",
     "false",
     {"--use_fsdp"}},
    {"fsdp_state_dict_type",
     "FULL_STATE_DICT",
     [](LaunchConfig& config) { config.fsdp_config["fsdp_state_dict_type"] = std::string("SHARDED_STATE_DICT"); },
     "SHARDED_STATE_DICT",
     "FSDP_STATE_DICT_TYPE",
     "",
     {"--use_fsdp"}},
    {"zero_stage",
     "3",
     [](LaunchConfig& config) { config.deepspeed_config["zero_stage"] = std::int64_t(1); },
     "1",
     "ACCELERATE_DEEPSPEED_ZERO_STAGE",
     "",
     {"--use_deepspeed"}},
    {"gradient_accumulation_steps",
     "4",
     [](LaunchConfig& config) { config.deepspeed_config["gradient_accumulation_steps"] = std::int64_t(2); },
     "2",
     "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
     "",
     {"--use_deepspeed"}}};

// `file_is_first` plants the bug that the file has precedence over the flag.
void expect_the_first_counts(bool file_is_first) {
  const auto& layered = testing::pick_from(kLayered);
  const bool in_flag = *rc::gen::arbitrary<bool>(), in_file = *rc::gen::arbitrary<bool>(),
             in_environment = *rc::gen::arbitrary<bool>();
  LaunchConfig config;
  config.num_processes = 2;
  if (in_file) layered.in_file(config);
  Variables variables;
  if (in_environment) variables[layered.variable] = "from the environment";
  auto flags = layered.more;
  const bool has_hyphens = *rc::gen::arbitrary<bool>();
  auto name = layered.flag;
  // Flags may be written with hyphens or underscores.
  if (has_hyphens) std::replace(name.begin(), name.end(), '_', '-');
  if (in_flag) flags.push_back("--" + name + "=" + layered.flag_value);
  const auto got = seen(plan(flags, surroundings(config, variables)), variables, layered.variable).value_or("");
  const auto of_file = in_file ? std::optional(layered.file_value) : std::nullopt,
             of_flag = in_flag ? std::optional(layered.flag_value) : std::nullopt;
  const auto first = file_is_first ? of_file : of_flag, second = file_is_first ? of_flag : of_file;
  const auto expected = first            ? *first
                        : second         ? *second
                        : in_environment ? "from the environment"
                                         : layered.default_value;
  RC_ASSERT(got == expected);
}

// The order of precedence is Accelerate's. A model with another order must be refuted.
TEST(LaunchPlanLaws, FlagsPrecedeFileEnvironmentAndDefault) {
  expect_property(300, [] { expect_the_first_counts(false); });
  expect_property_fails("the file beats the flag", 300, [] { expect_the_first_counts(true); });
}

// accelerate/commands/launch.py reads these keys and then overwrites them with the defaults of its flags.
TEST(LaunchPlanTest, ValuesOfTheFileThatAccelerateIgnoresAreKept) {
  LaunchConfig config;
  config.num_processes = 2;
  config.enable_cpu_affinity = true;
  EXPECT_TRUE(plan({}, surroundings(config)).job.pins_cpus);
  config.rdzv_backend = "c10d";
  EXPECT_THAT(problems_of_plan({}, surroundings(config)), HasSubstr("rdzv_backend: 'c10d' is unsupported"));
  EXPECT_EQ(problems_of_plan({"--rdzv_backend", "static"}, surroundings(config)), "");
}

// A file without a number is an error: starting one process by mistake would train on a part of the machine.
TEST(LaunchPlanTest, TheNumberOfProcessesIsFromFlagFileGpusOrOne) {
  EXPECT_EQ(plan({}).num_ranks, 1);
  auto around = surroundings();
  around.num_gpus = 4;
  EXPECT_EQ(plan({}, around).num_ranks, 4);
  EXPECT_EQ(plan({"--cpu"}, around).num_ranks, 1);
  EXPECT_EQ(plan({"--gpu_ids", "0,2,3"}, around).num_ranks, 3);
  EXPECT_EQ(plan({"--num_machines", "2", "--main_process_ip", "10.0.0.1"}, around).num_ranks, 8);
  LaunchConfig config;
  EXPECT_THAT(problems_of_plan({}, surroundings(config)), HasSubstr("pass --num_processes N"));
  config.num_processes = 3;
  EXPECT_EQ(plan({}, surroundings(config)).num_ranks, 3);
  EXPECT_EQ(plan({"--num_processes", "5"}, surroundings(config)).num_ranks, 5);
}

// Without the variable every rank would start one thread for each core, and the ranks would slow each other down.
TEST(LaunchPlanTest, CoresAreDividedAmongRanksOnCpusByDefault) {
  EXPECT_EQ(plan({"--cpu", "--num_processes", "2"}).job.default_environment.at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(plan({"--cpu", "--num_processes", "16"}).job.default_environment.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(plan({"--num_processes", "2"}).job.default_environment.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(plan({"--cpu", "--num_cpu_threads_per_process", "3"}).job.environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(plan({"--cpu", "--num_cpu_threads_per_process", "03"}).job.environment.at("OMP_NUM_THREADS"), "3");
}

// The output of one rank stays byte for byte what its program writes.
TEST(LaunchPlanTest, OnlyLinesOfSeveralRanksHaveAPrefix) {
  EXPECT_EQ(plan({}).job.prefix, "");
  EXPECT_EQ(plan({"--num_processes", "2"}).job.prefix, "rank");
  EXPECT_EQ(plan({"--num_processes", "2", "--role", "worker"}).job.prefix, "worker");
  EXPECT_EQ(plan({"--num_processes", "2", "--no_prefix"}).job.prefix, "");
}

// A port that the user gave must not be replaced by a free one, as the other machines would not know it.
TEST(LaunchPlanTest, PortAndAddressComeFromFlagFileOrEnvironment) {
  const auto around = surroundings(std::nullopt, {{"MASTER_PORT", "1234"}, {"MASTER_ADDR", "10.0.0.9"}});
  EXPECT_EQ(plan({"--num_processes", "2"}, around).job.machines.main_port, 1234);
  EXPECT_EQ(plan({"--num_processes", "2", "--main_process_port", "5"}, around).job.machines.main_port, 5);
  EXPECT_EQ(plan({"--num_processes", "2", "--num_machines", "2"}, around).job.machines.main_address, "10.0.0.9");
  EXPECT_EQ(plan({"--num_processes", "2"}, around).job.machines.main_address, "127.0.0.1");
  EXPECT_FALSE(plan({"--num_processes", "2"}, around).may_change_port);
  EXPECT_TRUE(plan({"--num_processes", "2"}).may_change_port);
  const Words of_two_machines{"--num_processes", "2", "--num_machines", "2", "--main_process_ip", "10.0.0.9"};
  EXPECT_FALSE(plan(of_two_machines).may_change_port);
}

// The file's address belongs to several machines. With one machine the rendezvous must not leave it.
TEST(LaunchPlanTest, OneMachineUsesTheLoopbackAddress) {
  LaunchConfig config;
  config.num_processes = 4;
  config.num_machines = 2;
  config.main_process_ip = "10.0.0.1";
  EXPECT_EQ(plan({}, surroundings(config)).job.machines.main_address, "10.0.0.1");
  EXPECT_EQ(plan({"--num_machines", "1"}, surroundings(config)).job.machines.main_address, "127.0.0.1");
}

// As in Accelerate, --multi_gpu switches sharding off unless its own flag is given too.
TEST(LaunchPlanTest, MultiGpuPrecedesTheTypeOfTheFile) {
  LaunchConfig config;
  config.num_processes = 2;
  config.distributed_type = "FSDP";
  auto around = surroundings(config);
  around.num_gpus = 2;
  const auto uses_fsdp = [&](const Words& flags) {
    return plan(flags, around).job.environment.contains("ACCELERATE_USE_FSDP");
  };
  EXPECT_TRUE(uses_fsdp({}));
  EXPECT_FALSE(uses_fsdp({"--multi_gpu"}));
  EXPECT_TRUE(uses_fsdp({"--multi_gpu", "--use_fsdp"}));
}

// As in Accelerate: a flag always wins.
TEST(LaunchPlanTest, TheEnvironmentsShardingStrategyOnlyPrecedesTheDefault) {
  const Variables variables{{"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"}};
  const auto strategy = [&](const Words& flags) {
    return seen(plan(flags, surroundings(std::nullopt, variables)), variables, "FSDP_SHARDING_STRATEGY");
  };
  EXPECT_EQ(strategy({"--use_fsdp", "--num_processes", "2"}), "SHARD_GRAD_OP");
  EXPECT_EQ(strategy({"--use_fsdp", "--num_processes", "2", "--fsdp_sharding_strategy", "NO_SHARD"}), "NO_SHARD");
  EXPECT_EQ(strategy({"--use_fsdp", "--num_processes", "2", "--fsdp_reshard_after_forward", "HYBRID_SHARD"}),
            "HYBRID_SHARD");
}

// The file describes this training; the variable may come from the shell's start-up files.
TEST(LaunchPlanTest, AFileForGpusPrecedesTheEnvironmentsCpu) {
  LaunchConfig config;
  config.num_processes = 2;
  const Variables variables{{"ACCELERATE_USE_CPU", "1"}};
  EXPECT_EQ(seen(plan({}, surroundings(config, variables)), variables, "ACCELERATE_USE_CPU"), "False");
  EXPECT_EQ(
      seen(plan({"--num_processes", "2"}, surroundings(std::nullopt, variables)), variables, "ACCELERATE_USE_CPU"),
      "True");
}

// Flags replace "auto" in a DeepSpeed file. Keys of the config file next to such a file are ignored by Accelerate.
TEST(LaunchPlanTest, OnlyKeysOfTheFileAreListedForDeepSpeed) {
  LaunchConfig config;
  config.num_processes = 2;
  config.distributed_type = "DEEPSPEED";
  config.deepspeed_config["zero_stage"] = std::int64_t(2);
  EXPECT_EQ(
      plan({"--gradient_clipping", "0.5"}, surroundings(config)).job.environment.at("ACCELERATE_CONFIG_DS_FIELDS"),
      "zero_stage");
  EXPECT_EQ(plan({"--use_deepspeed", "--num_processes", "2", "--mixed_precision", "bf16", "--gradient_clipping", "0.5"})
                .job.environment.at("ACCELERATE_CONFIG_DS_FIELDS"),
            "");
}

// Open MPI and Hydra (MPICH, Intel MPI) have different options, and neither passes the environment on
// automatically.
TEST(LaunchPlanTest, MpirunGetsTheHostfileAndEveryVariableByName) {
  auto around = surroundings(std::nullopt, {{"OMP_NUM_THREADS", "2"}});
  around.hosts = {"alpha", "beta"};
  const auto command =
      plan({"--cpu", "--num_processes", "8", "--mpirun_hostfile", "hosts", "--mixed_precision", "bf16"}, around)
          .job.command;
  EXPECT_THAT(Words(command.begin(), command.begin() + 9),
              ElementsAre("mpirun", "--hostfile", "hosts", "--npernode", "4", "-n", "8", "--bind-to",
                          "socket:overload-allowed"));
  EXPECT_THAT(command, IsSupersetOf({"ACCELERATE_MIXED_PRECISION=bf16", "MASTER_ADDR=alpha", "MASTER_PORT=29500",
                                     "OMP_NUM_THREADS=2", "ACCELERATE_USE_CPU=True"}));
  EXPECT_EQ(command.back(), "./train");
  // Without Open MPI the plan uses Hydra's spelling.
  around.has_open_mpi = false;
  const auto hydra = plan({"--cpu", "--num_processes", "8", "--mpirun_hostfile", "hosts"}, around).job.command;
  EXPECT_THAT(Words(hydra.begin(), hydra.begin() + 7), ElementsAre("mpirun", "-f", "hosts", "-ppn", "4", "-n", "8"));
  EXPECT_THAT(hydra, Contains("-genv"));
  EXPECT_THAT(parse_hostfile("# two\nalpha slots=4\n\nbeta:4 # the other\n"), ElementsAre("alpha", "beta"));
}

// Variables of a single rank must be absent, or all simulated ranks would believe to be that one.
TEST(LaunchPlanTest, SimulatedRanksAreOneProcess) {
  const auto planned = plan({"--sim", "--num_processes", "64", "--mixed_precision", "bf16"});
  EXPECT_EQ(planned.way, LaunchPlan::Way::kSimulated);
  EXPECT_EQ(planned.num_ranks, 64);
  EXPECT_THAT(describe(planned), AllOf(HasSubstr("ACCELERATE_MIXED_PRECISION=bf16"),
                                       HasSubstr("sim-run --ranks 64 -- ./train"), Not(HasSubstr("RANK="))));
}

// Accelerate's launcher supports this too, for tests without GPUs.
TEST(LaunchPlanTest, ShardingOnCpusIsLaunched) {
  const auto planned = plan({"--cpu", "--use_fsdp", "--num_processes", "4"});
  EXPECT_THAT(planned.job.environment,
              AllOf(Contains(Pair("ACCELERATE_USE_CPU", "True")), Contains(Pair("ACCELERATE_USE_FSDP", "true"))));
  EXPECT_EQ(planned.num_ranks, 4);
}

TEST(LaunchPlanTest, MegatronsFlagsReachTheRanksOnAnyDevice) {
  const Words flags{"--use_megatron_lm",
                    "--megatron_lm_tp_degree",
                    "2",
                    "--megatron_lm_sequence_parallelism",
                    "true",
                    "--num_processes",
                    "4"};
  for (const bool on_cpus : {false, true}) {
    auto given = flags;
    if (on_cpus) given.insert(given.begin(), "--cpu");
    const auto job = plan(given).job;
    EXPECT_THAT(job.environment, AllOf(Contains(Pair("ACCELERATE_USE_MEGATRON_LM", "true")),
                                       Contains(Pair("MEGATRON_LM_TP_DEGREE", "2")),
                                       Contains(Pair("MEGATRON_LM_SEQUENCE_PARALLELISM", "true"))));
    EXPECT_THAT(job.default_environment, Contains(Pair("MEGATRON_LM_GRADIENT_CLIPPING", "1.0")));
    EXPECT_THAT(job.default_environment, Not(Contains(::testing::Key("MEGATRON_LM_CONTEXT_PARALLEL_SIZE"))));
  }
}

// Accelerate requires FSDP 2 for a mesh.
TEST(LaunchPlanTest, AMeshReachesRanksWithoutAPlugin) {
  const auto job = plan({"--cpu", "--use_parallelism_config", "--parallelism_config_cp_size", "2",
                         "--parallelism_config_cp_comm_strategy", "alltoall", "--parallelism_config_ep_size", "2",
                         "--num_processes", "4"})
                       .job;
  EXPECT_THAT(job.environment, AllOf(Contains(Pair("ACCELERATE_USE_PARALLELISM_CONFIG", "true")),
                                     Contains(Pair("PARALLELISM_CONFIG_CP_SIZE", "2")),
                                     Contains(Pair("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall")),
                                     Contains(Pair("PARALLELISM_CONFIG_EP_SIZE", "2"))));
}

TEST(LaunchPlanTest, FlagsThatWouldBeLostAreRefused) {
  EXPECT_THAT(
      problems_of_plan({"--sim", "--max_restarts", "2", "--log_dir", "logs"}),
      AllOf(HasSubstr("--max_restarts: has no effect with --sim"), HasSubstr("--log_dir: has no effect with --sim")));
  EXPECT_THAT(problems_of_plan({"--mpirun_hostfile", "hosts", "--role", "trainer"}),
              HasSubstr("--role: has no effect with --mpirun_hostfile"));
  EXPECT_THAT(problems_of_plan({"--sim", "--num_machines", "2", "--main_process_ip", "10.0.0.1"}),
              HasSubstr("leave --num_machines out"));
}

// torchrun has the same keys; others are rejected, as they would have no effect.
TEST(LaunchPlanTest, RendezvousTimesComeFromRdzvConf) {
  const auto machines =
      plan({"--rdzv_conf", "join_timeout=30,keep_alive_interval=0.5,keep_alive_max_attempt=4"}).job.machines;
  EXPECT_EQ(machines.join_timeout, std::chrono::seconds(30));
  EXPECT_EQ(machines.alive_interval, std::chrono::milliseconds(500));
  EXPECT_EQ(machines.alive_missed_max, 4);
  EXPECT_THAT(
      problems_of_plan({"--rdzv_conf", "join_timeout=soon,colour=red"}),
      AllOf(HasSubstr("join_timeout: expected a number above 0, got 'soon'"), HasSubstr("colour: unknown key")));
}

// The help is written by hand.
TEST(LaunchPlanTest, EveryFlagIsInTheHelp) {
  const auto help = launch_flags_help();
  for (const auto& name : launch_flag_names()) EXPECT_THAT(help, HasSubstr("  " + name));
}

RC_GTEST_PROP(LaunchFlagsLaws, AWordThatIsNotAFlagStartsTheProgram, (const std::string& first, const Words& rest)) {
  RC_PRE(!first.empty() && first[0] != '-');
  Words arguments{"--num-processes", "3", first};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  const auto flags = parse_launch_flags(arguments);
  RC_ASSERT(flags.integer("num_processes") == 3);
  RC_ASSERT(flags.command == Words(arguments.begin() + 2, arguments.end()));
}

}  // namespace
}  // namespace accel::programs
