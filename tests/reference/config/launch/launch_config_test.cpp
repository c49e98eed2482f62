// Launch configurations: files of `accelerate config`, old ones included. A user's file must keep working, so the
// tests use files as the various versions wrote them.
#include "reference/config/launch/launch_config.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LaunchConfigTest : public ::testing::Test {
 protected:
  LaunchConfig read(const std::string& text, const std::string& name = "config.yaml") {
    return read_launch_config(folder_.write(name, text));
  }
  std::string problems(const std::string& text, const std::string& name = "config.yaml") {
    return message_of<ConfigError>([&] { read(text, name); });
  }
  TemporaryFolder folder_;
};

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// An unquoted NO is false in YAML, which is what old files contain.
TEST_F(LaunchConfigTest, AbsentValuesHaveAcceleratesDefaults) {
  LaunchConfig expected;
  expected.num_processes = 1;
  EXPECT_EQ(read("distributed_type: 'NO'\n"), expected);
  EXPECT_EQ(read("distributed_type: NO\n"), expected);  // YAML reads NO as false in Python
  expected.num_processes = -1;
  expected.distributed_type = "MULTI_CPU";
  EXPECT_EQ(read("distributed_type: MULTI_CPU\nnum_processes: null\nfsdp_config: {}\ndeepspeed_config: null\n"),
            expected);
}

// Version 0.11 had fp16 instead of mixed_precision and lacked half of today's keys.
TEST_F(LaunchConfigTest, FilesOfVersion011Load) {
  const auto config = read(
      "compute_environment: LOCAL_MACHINE\ndeepspeed_config: {}\ndistributed_type: MULTI_GPU\nfp16: true\nfsdp_config: "
      "{}\nmachine_rank: 0\n"
      "main_process_ip: null\nmain_process_port: null\nmain_training_function: main\nnum_machines: 1\nnum_processes: "
      "2\nuse_cpu: false\n");
  EXPECT_EQ(config.mixed_precision, "fp16");
  EXPECT_EQ(config.num_processes, 2);
  EXPECT_EQ(config.main_process_port, std::nullopt);
  EXPECT_EQ(read("distributed_type: MULTI_GPU\nfp16: false\n").mixed_precision, std::nullopt);
  EXPECT_EQ(read("distributed_type: MULTI_GPU\nfp16: true\nmixed_precision: bf16\n").mixed_precision, "bf16");
}

// LibTorch has no compiler for models. The keys are kept for Python and otherwise ignored.
TEST_F(LaunchConfigTest, FilesWithADynamoBackendLoad) {
  EXPECT_EQ(read("distributed_type: 'NO'\ndynamo_backend: INDUCTOR\ndowncast_bf16: 'no'\n").dynamo_config,
            (ConfigSection{{"dynamo_backend", std::string("INDUCTOR")}}));
  EXPECT_THAT(read("distributed_type: 'NO'\ndynamo_backend: 'NO'\n").dynamo_config, IsEmpty());
  EXPECT_THAT(read("distributed_type: 'NO'\ndynamo_backend: NO\n").dynamo_config, IsEmpty());
}

// Numbers in quotes appear in files that Accelerate wrote itself.
TEST_F(LaunchConfigTest, FilesForMpirunLoad) {
  const auto config = read(
      "distributed_type: MULTI_CPU\nmain_process_ip: 10.1.2.3\nmain_process_port: 29501\nmpirun_config:\n  mpirun_ccl: "
      "'1'\n  mpirun_hostfile: /etc/hosts.mpi\n"
      "num_machines: 2\nnum_processes: 8\nuse_cpu: true\nsame_network: true\n");
  EXPECT_EQ(config.mpirun_config.at("mpirun_hostfile"), ConfigValue("/etc/hosts.mpi"));
  EXPECT_EQ(config.main_process_ip, "10.1.2.3");
  EXPECT_EQ(config.main_process_port, 29501);
  EXPECT_TRUE(config.same_network && config.use_cpu);
}

// Keys without the prefix come from older versions of Accelerate.
TEST_F(LaunchConfigTest, FilesForFp8LoadWithAllNamesOfTheirKeys) {
  const auto config = read(
      "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n  fp8_format: E4M3\n  "
      "amax_history_length: 32\n  amax_compute_algorithm: max\n"
      "  optimization_level: O1\n  override_linear_precision: (true, false, false)\n");
  EXPECT_EQ(config.fp8_config, (ConfigSection{{"fp8_backend", "TE"},
                                              {"fp8_format", "E4M3"},
                                              {"fp8_amax_history_len", std::int64_t{32}},
                                              {"fp8_amax_compute_algo", "max"},
                                              {"fp8_opt_level", "O1"},
                                              {"fp8_override_linear_precision", "(true, false, false)"}}));
  EXPECT_THAT(problems_of(config),
              ::testing::ElementsAre("fp8_backend: TE is a Python package; expected AO, the built-in implementation"));
  EXPECT_EQ(environment_of(config).at("ACCELERATE_FP8_AMAX_HISTORY_LEN"), "32");
  EXPECT_EQ(environment_of(config).at("ACCELERATE_FP8_OVERRIDE_FPROP"), "True");
  EXPECT_EQ(environment_of(config).at("ACCELERATE_FP8_OVERRIDE_WGRAD"), "False");
}

// All these spellings occur in files of earlier versions of Accelerate.
TEST_F(LaunchConfigTest, KeysOfSectionsMayOmitTheirPrefixOrHaveOldNames) {
  const auto config = read(
      "distributed_type: FSDP\nfsdp_config:\n  sharding_strategy: 2\n  fsdp_backward_prefetch_policy: BACKWARD_PRE\n  "
      "min_num_params: 2000\n  ignored_modules: null\n");
  EXPECT_EQ(config.fsdp_config, (ConfigSection{{"fsdp_sharding_strategy", std::int64_t{2}},
                                               {"fsdp_backward_prefetch", "BACKWARD_PRE"},
                                               {"fsdp_min_num_params", std::int64_t{2000}}}));
  EXPECT_THAT(problems("distributed_type: FSDP\nfsdp_config:\n  version: 2\n  fsdp_version: 1\n"),
              HasSubstr(":4: fsdp_config.fsdp_version: duplicate key: fsdp_version is already set, maybe in another "
                        "spelling; keep only one"));
}

TEST_F(LaunchConfigTest, AllProblemsAreReportedWithTheirLines) {
  EXPECT_EQ(
      problems("num_proceses: 4\nmixed_precision: fp32\nuse_cpu: perhaps\nmain_process_port: "
               "high\nfsdp_config:\n  fsdp_versoin: 2\n  fsdp_version: 3\ncommands: ls\ntotally_else: 1\n"),
      ([&] {
        const auto file = folder_.path("config.yaml") + ":";
        return file + "8: commands: expected a list of strings, got 'ls'\n" + file +
               "6: fsdp_config.fsdp_versoin: unknown key; did you mean 'fsdp_version'?\n" + file +
               "7: fsdp_config.fsdp_version: expected 1, 2, got '3'\n" + file +
               "4: main_process_port: expected an integer, got 'high'\n" + file +
               "3: use_cpu: expected true or false, got 'perhaps'\n" + file +
               "1: num_proceses: unknown key; did you mean 'num_processes'?\n" + file +
               "9: totally_else: unknown key; correct or remove it\n" + file +
               "2: mixed_precision: expected no, fp16, bf16, fp8, got 'fp32'\n" + file +
               "1: distributed_type: missing; it is required: NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM";
      }()));
}

TEST_F(LaunchConfigTest, InvalidFilesAreErrorsThatNameTheFile) {
  EXPECT_THAT(problems("distributed_type: TPU\n"),
              HasSubstr("config.yaml:1: distributed_type: expected one of NO, MULTI_CPU"));
  EXPECT_THAT(problems("- a\n"), HasSubstr("expected a mapping of keys to values, got a list"));
  EXPECT_THAT(problems("{"), HasSubstr("config.yaml"));
  EXPECT_THAT(problems("distributed_type: 'NO'\n", "config.json"), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(problems("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nec2_instance_type: a\n"),
              AllOf(HasSubstr("AMAZON_SAGEMAKER"), HasSubstr("accel config"), Not(HasSubstr("ec2"))));
  EXPECT_THAT(message_of<ConfigError>([&] { read_launch_config(folder_.path("nowhere.yaml")); }),
              HasSubstr("nowhere.yaml: no such file; expected a configuration file"));
}

// A file for other hardware is valid, so it can be viewed and edited here. Only launching it is an error.
TEST_F(LaunchConfigTest, OtherVendorsDevicesLoadAndCannotBeLaunched) {
  for (const std::string type : {"MULTI_XPU", "XLA"}) {
    EXPECT_THAT(problems_of(read("distributed_type: " + type + "\nnum_processes: 2\n")),
                ::testing::ElementsAre(HasSubstr("CPUs and NVIDIA GPUs")))
        << type;
  }
  EXPECT_THAT(
      problems_of(read("distributed_type: MULTI_CPU\nnum_processes: 3\nnum_machines: 2\nmachine_rank: 2\n")),
      ::testing::ElementsAre(HasSubstr("machine_rank: expected 0 to 1, got 2"),
                             HasSubstr("3 is not divisible by 2 machines"), HasSubstr("main_process_ip: missing")));
}

// Byte for byte, including the order of keys and quotes, so that a file under version control shows no changes.
TEST_F(LaunchConfigTest, TheFileEqualsPythonsOutput) {
  LaunchConfig config{.distributed_type = "FSDP",
                      .mixed_precision = "no",
                      .num_processes = 2,
                      .gpu_ids = "0,1",
                      .main_process_ip = "fe80::1",
                      .same_network = true,
                      .fsdp_config = {{"fsdp_version", std::int64_t{2}}, {"fsdp_reshard_after_forward", true}},
                      .downcast_bf16 = "no",
                      .tpu_env = std::vector<std::string>{},
                      .dynamo_config = {}};
  config.commands = {"echo 'a: b'", "true"};
  config.megatron_lm_config["megatron_lm_gradient_clipping"] = 1e-8;
  write_launch_config(config, folder_.path("new/folder/c.yaml"));
  EXPECT_EQ(content(folder_.path("new/folder/c.yaml")), R"(commands:
- 'echo ''a: b'''
- 'true'
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_reshard_after_forward: true
  fsdp_version: 2
gpu_ids: 0,1
machine_rank: 0
main_process_ip: fe80::1
main_training_function: main
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0e-08
mixed_precision: 'no'
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)");
}

// Python may read a text as another type if quotes are missing. yaml-cpp returns the text in either case, so the
// quotes are checked by what our reader distinguishes: null.
TEST_F(LaunchConfigTest, EveryTextSurvivesWhereNullMeansNotGiven) {
  for (const std::string text : {"null", "~", "", "Null"}) {
    LaunchConfig config;
    config.num_processes = 1;
    config.tpu_name = text;
    write_launch_config(config, folder_.path("c.yaml"));
    EXPECT_EQ(read_launch_config(folder_.path("c.yaml")).tpu_name, text);
  }
}

// The file that was read must keep all other values.
TEST_F(LaunchConfigTest, FlagsReplaceValuesOfAFile) {
  const auto base =
      read("distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 1\n  fsdp_offload_params: true\n");
  const auto config = with_flags(base, {{"num_processes", "8"},
                                        {"fsdp_version", "2"},
                                        {"zero_stage", "3"},
                                        {"debug", "true"},
                                        {"mixed_precision", "no"}});
  EXPECT_EQ(config.num_processes, 8);
  EXPECT_EQ(config.fsdp_config, (ConfigSection{{"fsdp_version", std::int64_t{2}}, {"fsdp_offload_params", true}}));
  EXPECT_EQ(config.deepspeed_config, (ConfigSection{{"zero_stage", std::int64_t{3}}}));
  EXPECT_EQ(config.mixed_precision, "no");
  EXPECT_TRUE(config.debug);
  EXPECT_EQ(message_of<ConfigError>([&] {
              with_flags(base, {{"num_processes", "x"}, {"zero_stage", "4"}, {"zero_stages", "1"}});
            }),
            "command line: deepspeed_config.zero_stage: expected 0, 1, 2, 3, got '4'\ncommand line: num_processes: "
            "expected an integer, got 'x'\n"
            "command line: zero_stages: unknown key; correct or remove it");
}

// A valid value for any key.
std::string value_for(const LaunchKey& key) {
  if (key.kind == KeyKind::kFlags) return "true,false,true";
  if (key.choices.size() > 0) return *key.choices.begin();
  return key.kind == KeyKind::kFlag ? "true" : "1";
}

// A loop over the table, so that a new key is tested without further work.
TEST_F(LaunchConfigTest, EveryFlagAcceptsAValueOfItsKind) {
  int count = 0;
  const auto expect_taken = [&](const LaunchKey& key) {
    if (key.kind == KeyKind::kTexts) return;
    EXPECT_NO_THROW(with_flags({}, {{key.name, value_for(key)}})) << key.name;
    ++count;
  };
  for (const auto& [name, entry] : file_entries()) {
    if (entry.key != nullptr) expect_taken(*entry.key);
    if (entry.section != nullptr) std::for_each(entry.section->keys.begin(), entry.section->keys.end(), expect_taken);
  }
  EXPECT_GT(count, 90);
}

// --- folders ---------------------------------------------------------------------------------------------------------

// The order of huggingface_hub: HF_HOME, then XDG_CACHE_HOME, then ~/.cache. A "~" in a variable is expanded.
TEST_F(LaunchConfigTest, TheFolderFollowsTheEnvironment) {
  CleanEnvironment environment({"HF_HOME", "XDG_CACHE_HOME", "HOME"});
  environment.set({{"HOME", folder_.path("me")}});
  EXPECT_EQ(config_folder(), folder_.path("me/.cache/huggingface/accelerate"));
  environment.set({{"XDG_CACHE_HOME", "~/x"}});
  EXPECT_EQ(config_folder(), folder_.path("me/x/huggingface/accelerate"));
  environment.set({{"HF_HOME", folder_.path("hf")}});
  EXPECT_EQ(default_config_file(), folder_.path("hf/accelerate/default_config.yaml"));
  write_launch_config({}, folder_.path("hf/accelerate/default_config.json"));
  EXPECT_EQ(default_config_file(), folder_.path("hf/accelerate/default_config.json"));
  write_launch_config({}, folder_.path("hf/accelerate/default_config.yaml"));
  EXPECT_EQ(default_config_file(), folder_.path("hf/accelerate/default_config.yaml"));
}

}  // namespace
}  // namespace accel::testing
