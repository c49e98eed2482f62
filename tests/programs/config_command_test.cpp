// accel config, env, to-fsdp2, help and completion, tested through the program as a user runs it: with lines on
// standard input, on a pseudo-terminal, and in shells. The files that config writes must be those of Python's
// Accelerate.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "reference/config/launch/launch_config.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/terminal_session.hpp"

namespace accel::testing::config_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigCommandTest : public ::testing::Test {
 protected:
  CommandResult accel(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bin("accel"));
    return run_command(arguments, options_);
  }
  /// Runs with lines on standard input.
  CommandResult answered(const std::string& answers, const std::string& arguments = "config") {
    const auto file = folder_.write("answers", answers);
    return run_command({"bash", "-c", bin("accel") + " " + arguments + " < " + file}, options_);
  }
  std::string file(const std::string& name, const std::string& content) { return folder_.write(name, content); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  [[nodiscard]] std::string default_file() const { return folder_.path("accelerate/default_config.yaml"); }
  LaunchConfig written() { return read_launch_config(default_file()); }

  TemporaryFolder folder_;
  // CUDA is hidden, so that defaults do not depend on the GPUs of the machine.
  CommandOptions options_{.environment = {{"HF_HOME", folder_.path()}, {"CUDA_VISIBLE_DEVICES", ""}}};
};

// The content of a file.
std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// --- questions -------------------------------------------------------------------------------------------------------

// Twenty empty lines are more than there are questions; the surplus is not read.
TEST_F(ConfigCommandTest, EmptyAnswersAreTheDefaultsThatAreShown) {
  const auto run = answered(std::string(20, '\n'));
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(written(), (LaunchConfig{.distributed_type = "NO",
                                     .mixed_precision = "no",
                                     .num_processes = 1,
                                     .gpu_ids = "all",
                                     .same_network = true,
                                     .downcast_bf16 = "no",
                                     .tpu_env = std::vector<std::string>()}));
  EXPECT_THAT(run.output, AllOf(HasSubstr("Number [0]: "), HasSubstr("[yes/NO]: "), HasSubstr("[all]: "),
                                HasSubstr("saved at " + default_file())));
}

// Answers on standard input, as when a script pipes them.
TEST_F(ConfigCommandTest, SeveralMachinesOfProcessorsUnderFsdp2) {
  const auto run = answered(
      "0\nmulti-CPU\n2\n1\n10.0.0.1\n29501\n\n\nno\n"  // machine, type, machines, rank, address, port, network, debug,
                                                       // mpirun
      "no\nyes\n1\n\n\n0\nBlock\n\n\n\n"  // deepspeed, fsdp: version, reshard, offload, policy, class, state dict, ram,
                                          // checkpointing
      "no\n"                              // mesh
      "4\nfp8\n");
  ASSERT_EQ(run.exit_code, 0) << run.error << run.output;
  const auto config = written();
  EXPECT_EQ(config.distributed_type, "FSDP");
  EXPECT_TRUE(config.use_cpu && config.same_network);
  EXPECT_EQ(config.num_machines, 2);
  EXPECT_EQ(config.machine_rank, 1);
  EXPECT_EQ(config.main_process_ip, "10.0.0.1");
  EXPECT_EQ(config.main_process_port, 29501);
  EXPECT_EQ(config.num_processes, 4);
  EXPECT_EQ(config.mixed_precision, "fp8");
  EXPECT_EQ(config.fp8_config,
            (ConfigSection{
                {"fp8_backend", "AO"}, {"fp8_enable_fsdp_float8_all_gather", false}, {"fp8_pad_inner_dim", true}}));
  EXPECT_EQ(config.fsdp_config, (ConfigSection{{"fsdp_version", std::int64_t{2}},
                                               {"fsdp_reshard_after_forward", true},
                                               {"fsdp_offload_params", false},
                                               {"fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                                               {"fsdp_transformer_layer_cls_to_wrap", "Block"},
                                               {"fsdp_state_dict_type", "SHARDED_STATE_DICT"},
                                               {"fsdp_cpu_ram_efficient_loading", true},
                                               {"fsdp_activation_checkpointing", false}}));
}

// The questions depend on earlier answers; version 1 has other questions than version 2.
TEST_F(ConfigCommandTest, Version1OfFsdpIsAskedForItsStrategy) {
  // Answers select by number, as accelerate/commands/menu does when there is no terminal.
  const auto run = answered("0\n1\n1\n\n\nno\nyes\n0\nHYBRID_SHARD\nyes\n1\n5000\n0\n1\nyes\nno\nno\nno\nyes\n8\n\n");
  ASSERT_EQ(run.exit_code, 0) << run.error << run.output;
  EXPECT_EQ(written().fsdp_config, (ConfigSection{{"fsdp_version", std::int64_t{1}},
                                                  {"fsdp_sharding_strategy", "HYBRID_SHARD"},
                                                  {"fsdp_offload_params", true},
                                                  {"fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"},
                                                  {"fsdp_min_num_params", std::int64_t{5000}},
                                                  {"fsdp_backward_prefetch", "BACKWARD_PRE"},
                                                  {"fsdp_state_dict_type", "SHARDED_STATE_DICT"},
                                                  {"fsdp_forward_prefetch", true},
                                                  {"fsdp_use_orig_params", false},
                                                  {"fsdp_cpu_ram_efficient_loading", false},
                                                  {"fsdp_sync_module_states", false},
                                                  {"fsdp_activation_checkpointing", true}}));
}

TEST_F(ConfigCommandTest, DeepSpeedsStagesAndMpirun) {
  auto run = answered("0\n2\n\n\nyes\nno\n3\nnvme\ncpu\n/scratch\n4\nyes\n0.5\nyes\n8\n0,1\nyes\n1\n");
  EXPECT_NE(run.exit_code, 0);  // the path follows its device: /scratch is no device
  run = answered("0\n2\n\n\nyes\nno\n3\nnvme\n/scratch\ncpu\n4\nyes\n0.5\nyes\n8\n0,1\nyes\n1\n");
  ASSERT_EQ(run.exit_code, 0) << run.error << run.output;
  EXPECT_EQ(written().distributed_type, "DEEPSPEED");
  EXPECT_EQ(written().deepspeed_config, (ConfigSection{{"zero_stage", std::int64_t{3}},
                                                       {"offload_optimizer_device", "nvme"},
                                                       {"offload_optimizer_nvme_path", "/scratch"},
                                                       {"offload_param_device", "cpu"},
                                                       {"gradient_accumulation_steps", std::int64_t{4}},
                                                       {"gradient_clipping", 0.5},
                                                       {"zero3_save_16bit_model", true}}));
  EXPECT_EQ(written().gpu_ids, "0,1");
  run = answered("0\n1\n\n\nyes\n/etc/hostfile\n\n\n\n6\n\n");
  ASSERT_EQ(run.exit_code, 0) << run.error << run.output;
  EXPECT_EQ(written().mpirun_config.at("mpirun_hostfile"), ConfigValue("/etc/hostfile"));
  EXPECT_EQ(written().num_processes, 6);
}

// Every second answer is invalid. The question must be repeated, because a wrong file would show much later.
TEST_F(ConfigCommandTest, AWrongAnswerIsAskedAgain) {
  const auto run = answered("1\n0\n3\n7\n2\nmany\n0\n1\nperhaps\n\n\n\n\n1\n2\n0;1\n0,1\n\n\n");
  ASSERT_EQ(run.exit_code, 0) << run.error << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("use Python's Accelerate for others"), HasSubstr("Please enter 0 to 3."),
                    HasSubstr("Please enter an integer of 1 or more."), HasSubstr("Please enter yes or no."),
                    HasSubstr("distributed training needs at least two GPUs"),
                    HasSubstr("Please enter numbers, as in 0,1, or all.")));
  EXPECT_EQ(written().distributed_type, "MULTI_GPU");
  EXPECT_EQ(written().num_processes, 2);
}

// A script that pipes too few answers must fail instead of writing a file of defaults.
TEST_F(ConfigCommandTest, WhereTheInputEndsNothingIsWritten) {
  const auto run = answered("0\n1\n");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("the input ended before the answer to: How many different machines"),
                               HasSubstr("accel config --num_processes 4")));
  EXPECT_FALSE(std::filesystem::exists(default_file()));
}

// A pseudo-terminal is needed here: menus react to keys only if standard input is a terminal.
// --- a terminal ------------------------------------------------------------------------------------------------------

// A real terminal, since the menu reads single keys.
TEST_F(ConfigCommandTest, ArrowKeysChoose) {
  TerminalSession session({bin("accel"), "config"}, options_);
  session.wait_for("AWS");
  session.type(kArrowDown + kArrowUp + "\n");
  session.wait_for("Which type of machine");
  session.wait_for("NEURON");
  session.type(kArrowUp + kArrowUp + kArrowUp + "\r");  // from the first over the last to multi-CPU
  session.wait_for("How many different machines");
  // In a menu the terminal must not echo keys; afterwards it must be in the state in which shells expect it.
  EXPECT_TRUE(session.is_in_shell_mode());
  session.type("\n\n\n\n\n\n3\n");  // machines, debug, mpirun, deepspeed, fsdp, megatron, processes
  session.wait_for("mixed precision");
  session.wait_for("bf16");
  session.type("jj\n");
  EXPECT_EQ(session.finish(), 0) << session.shown();
  EXPECT_EQ(written().distributed_type, "MULTI_CPU");
  EXPECT_EQ(written().num_processes, 3);
  EXPECT_EQ(written().mixed_precision, "bf16");
}

// The menu switches the terminal's echo off. If it stayed off, the user's shell would seem dead.
TEST_F(ConfigCommandTest, ControlCRestoresTheTerminal) {
  TerminalSession session({bin("accel"), "config"}, options_);
  session.wait_for("AWS");
  session.type(kControlC);
  EXPECT_EQ(session.finish(), 130);
  EXPECT_TRUE(session.is_in_shell_mode());
  EXPECT_THAT(session.shown(), HasSubstr("no file was written"));
  EXPECT_FALSE(std::filesystem::exists(default_file()));
}

// --- without questions -----------------------------------------------------------------------------------------------

// Accelerate accepts --num_processes and --num-processes, also mixed within one flag.
TEST_F(ConfigCommandTest, KeysAreFlagsInEitherSpelling) {
  ASSERT_EQ(
      accel({"config", "--num-processes=4", "--use_cpu", "--mixed-precision", "bf16", "--config_file", path("a.json")})
          .exit_code,
      0);
  EXPECT_THAT(text_of(path("a.json")), HasSubstr("\"num_processes\": 4"));
  const auto config = read_launch_config(path("a.json"));
  EXPECT_EQ(config.distributed_type, "MULTI_CPU");
  EXPECT_EQ(config.mixed_precision, "bf16");
  ASSERT_EQ(accel({"config", "--fsdp-version", "2", "--fsdp_reshard-after_forward", "false", "--num_processes", "2"})
                .exit_code,
            0);
  EXPECT_EQ(written().distributed_type, "FSDP");
  EXPECT_EQ(written().fsdp_config,
            (ConfigSection{{"fsdp_version", std::int64_t{2}}, {"fsdp_reshard_after_forward", false}}));
}

TEST_F(ConfigCommandTest, AllWrongFlagsAreReportedAtOnce) {
  const auto run = accel({"config", "--num_processes", "x", "--zero_stage", "4"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("num_processes: expected an integer, got 'x'"),
                               HasSubstr("zero_stage: expected 0, 1, 2, 3, got '4'")));
  const auto cannot =
      accel({"config", "--distributed_type", "MULTI_XPU", "--num_machines", "2", "--num_processes", "3"});
  EXPECT_EQ(cannot.exit_code, 2);
  EXPECT_THAT(cannot.error, AllOf(HasSubstr("CPUs and NVIDIA GPUs"), HasSubstr("3 is not divisible by 2 machines"),
                                  HasSubstr("main_process_ip: missing")));
  const auto misspelled = accel({"config", "--num_proceses", "4"});
  EXPECT_EQ(misspelled.exit_code, 2);
  EXPECT_THAT(misspelled.error, HasSubstr("did you mean --num_processes?"));
  EXPECT_FALSE(std::filesystem::exists(default_file()));
}

// `accelerate config default` keeps an existing file too (accelerate/commands/config/default.py).
TEST_F(ConfigCommandTest, DefaultNeverReplacesAFile) {
  auto run = accel({"config", "default", "--mixed_precision", "bf16"});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(written(),
            (LaunchConfig{.distributed_type = "NO", .mixed_precision = "bf16", .use_cpu = true, .num_processes = 1}));
  const auto before = text_of(default_file());
  run = accel({"config", "default"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("Configuration already exists at " + default_file()));
  EXPECT_EQ(text_of(default_file()), before);
  EXPECT_EQ(accel({"config", "default", "--mixed_precision", "fp32"}).exit_code, 2);
}

// Files of older versions have other keys. Updating may rename keys but must not change their meaning.
TEST_F(ConfigCommandTest, UpdateKeepsValuesAndAddsTodaysKeys) {
  const auto old = file(
      "old.yaml", "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\nfsdp_config:\n  sharding_strategy: 1\n");
  const auto before = read_launch_config(old);
  const auto run = accel({"config", "update", "--config_file", old});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(read_launch_config(old), before);
  EXPECT_THAT(text_of(old), AllOf(HasSubstr("mixed_precision: fp16\n"), HasSubstr("rdzv_backend: static\n"),
                                  HasSubstr("fsdp_sharding_strategy: 1\n"), Not(HasSubstr("fp16: "))));
  const auto missing = accel({"config", "update", "--config_file", path("nowhere.yaml")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.error, HasSubstr("nowhere.yaml: no such file"));
}

// --- env -------------------------------------------------------------------------------------------------------------

// Users paste this output into reports of errors.
TEST_F(ConfigCommandTest, EnvPrintsVersionsMachineAndConfiguration) {
  auto run = accel({"env"});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("- `accel` version: "), HasSubstr("- LibTorch version: 2."),
                    HasSubstr("- Platform: Linux-"), HasSubstr("GB\n"), HasSubstr("default config:\n\tNot found")));
  const auto config =
      file("c.yaml",
           "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n");
  run = accel({"env", "--config-file", config});
  EXPECT_THAT(run.output, AllOf(HasSubstr("config passed:\n"), HasSubstr("\t- num_processes: 2\n"),
                                HasSubstr("\t- fsdp_config: {'fsdp_offload_params': True, 'fsdp_version': 2}\n")));
  EXPECT_EQ(accel({"env", "--config_file", path("nowhere.yaml")}).exit_code, 2);
}

// The apostrophe checks the quoting: the output is passed to eval.
TEST_F(ConfigCommandTest, AShellCanEvaluateTheVariablesOfAConfiguration) {
  const auto config = file("c.yaml",
                           "distributed_type: FSDP\nnum_processes: 2\ngpu_ids: '0,1'\nfsdp_config:\n  fsdp_version: "
                           "2\n  transformer_layer_cls_to_wrap: it's,Block\n");
  const auto run = run_command({"bash", "-c",
                                "eval \"$(" + bin("accel") + " env --variables --config_file " + config +
                                    ")\"; echo $FSDP_VERSION $FSDP_TRANSFORMER_CLS_TO_WRAP $CUDA_VISIBLE_DEVICES"},
                               options_);
  EXPECT_EQ(run.output, "2 it's,Block 0,1\n") << run.error;
  EXPECT_EQ(accel({"env", "--variables"}).exit_code, 2);
}

// --- to-fsdp2 --------------------------------------------------------------------------------------------------------

// Keys of the user's own must survive, and values must keep their spelling, such as 1e8.
TEST_F(ConfigCommandTest, ToFsdp2TranslatesTheStrategyAndKeepsUnknownKeys) {
  const auto old = file("old.yaml",
                        "distributed_type: FSDP\nmy_own: [1, no]\nfsdp_config:\n  fsdp_sharding_strategy: "
                        "SHARD_GRAD_OP\n  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_forward_prefetch: false\n"
                        "  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n  fsdp_offload_params: false\n "
                        " fsdp_own_key: 1e8\n");
  auto run = accel({"to-fsdp2", "--config_file", path("no.yaml")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("--config_file: " + path("no.yaml") + " does not exist"),
                               HasSubstr("pass --output_file, or --overwrite")));
  run = accel({"to-fsdp2", "--config_file", old});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("pass --output_file, or --overwrite"));
  run = accel({"to-fsdp2", "--config_file", old, "--output-file", path("new.yaml")});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(text_of(path("new.yaml")),
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n  fsdp_own_key: 1e8\n  "
            "fsdp_reshard_after_forward: false\n  fsdp_version: 2\nmy_own:\n- 1\n- false\n");
  EXPECT_THAT(run.error, AllOf(HasSubstr("fsdp_use_orig_params: removed in version 2"),
                               HasSubstr("fsdp_backward_prefetch"), Not(HasSubstr("fsdp_own_key"))));
  run = accel({"to-fsdp2", "--config_file", old, "--output_file", path("new.yaml")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("exists already"));
  run = accel({"to-fsdp2", "--config_file", path("new.yaml"), "--overwrite"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.error, HasSubstr("is 2 already"));
}

// The mapping is that of accelerate/commands/to_fsdp2.py, which accepts a strategy under either key.
TEST_F(ConfigCommandTest, ToFsdp2TranslatesEveryStrategy) {
  for (const auto& [strategy, reshards] : std::map<std::string, std::string>{{"FULL_SHARD", "true"},
                                                                             {"SHARD_GRAD_OP", "false"},
                                                                             {"HYBRID_SHARD", "true"},
                                                                             {"HYBRID_SHARD_ZERO2", "false"},
                                                                             {"NO_SHARD", "false"}}) {
    for (const std::string key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward"}) {
      const auto config = file("c.yaml", "distributed_type: FSDP\nfsdp_config:\n  " + key + ": " + strategy + "\n");
      ASSERT_EQ(accel({"to-fsdp2", "--config_file", config, "--overwrite"}).exit_code, 0);
      EXPECT_EQ(text_of(config), "distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: " + reshards +
                                     "\n  fsdp_version: 2\n")
          << key << strategy;
    }
  }
}

// --- help and completion ---------------------------------------------------------------------------------------------

TEST_F(ConfigCommandTest, HelpIsThereForEveryCommand) {
  const auto all = accel({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  for (const std::string command : {"config", "env", "to-fsdp2", "data-check", "estimate-memory", "merge-weights"}) {
    EXPECT_THAT(all.output, HasSubstr(command));
    const auto help = accel({"help", command});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_EQ(help.output, accel({command, "--help"}).output);
    EXPECT_THAT(help.output, HasSubstr("Usage: accel " + command));
  }
  EXPECT_EQ(accel({"tpu-config"}).exit_code, 2);
  EXPECT_THAT(accel({"tpu-config"}).error, HasSubstr("tpu-config: unsupported"));
  EXPECT_THAT(accel({"--version"}).output, ::testing::StartsWith("accel "));
}

// Completion is tested in a real bash, because its word splitting decides what the function receives.
TEST_F(ConfigCommandTest, BashCompletesCommandsAndOptions) {
  const auto completed = [&](const std::string& words) {
    const auto script = "source <(" + bin("accel") +
                        " --completion bash); complete -p accel > /dev/null || exit 9; COMP_WORDS=(" + words +
                        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _accel; echo \"${COMPREPLY[@]}\"";
    const auto run = run_command({"bash", "-c", script}, options_);
    EXPECT_EQ(run.exit_code, 0) << run.error;
    return run.output;
  };
  EXPECT_EQ(completed("accel e"), "env estimate-memory\n");
  EXPECT_EQ(completed("accel help to"), "to-fsdp2\n");
  EXPECT_EQ(completed("accel config --fsdp_v"), "--fsdp_version\n");
  EXPECT_EQ(completed("accel config --num-p"), "--num_processes\n");
  EXPECT_EQ(completed("accel config up"), "update\n");
  EXPECT_EQ(completed("accel config default --m"), "--mixed_precision\n");
  EXPECT_EQ(completed("accel data-check --batch"), "--batch-size\n");
  EXPECT_EQ(completed("accel env 'some'"), "\n");
  EXPECT_EQ(accel({"--completion", "fish"}).exit_code, 2);
}

// Runs zsh on its own terminal, in which a tab is typed. A line that is not completed runs into the time limit.
TEST_F(ConfigCommandTest, ZshCompletesCommandsAndOptions) {
  const auto script = file("complete.zsh", R"(zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source <($1 --completion zsh); print rea''dy"
zpty -r shell seen '*ready*'
for typed completed in 'accel lau' launch 'accel launch --mixed' --mixed_precision \
  'accel config --num-p' _processes 'accel data-check --batch' --batch-size; do
  zpty -w -n shell "$typed"$'\t'
  zpty -r shell seen "*${completed}*"
  zpty -w -n shell $'\x15'
  print -r -- $typed
done
)");
  const auto run = run_command({"zsh", "-f", script, bin("accel")}, options_);
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, "accel lau\naccel launch --mixed\naccel config --num-p\naccel data-check --batch\n");
}

}  // namespace
}  // namespace accel::testing::config_command_test
