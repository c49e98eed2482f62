#pragma once

#include <string>
#include <vector>

/// The commands of `accel`, each in a file named after it: NAME_command.cpp.
namespace accel::programs {

/// The version, with the commit of a build from git: "0.1.0 (1a2b3c4d)".
extern const char* const kVersion;

struct LaunchFlags;

/// Runs a command. `argv[0]` is its name. Returns the exit code; throws ConfigError for wrong usage.
using CommandMain = int(int argc, char** argv);

/// Asks for a configuration and writes it. If any key is given as a flag, asks nothing. The subcommands `default` and
/// `update` are those of Accelerate.
CommandMain config_main;
CommandMain data_check_main;
CommandMain env_main;
CommandMain estimate_memory_main;
/// `accel launch [flags] PROGRAM [ARGS...]`.
CommandMain launch_main;
CommandMain merge_weights_main;
/// Starts `accel test --inner` as `accel launch` would start a program, with the same flags and files, and reports
/// whether all checks passed. `accel test --inner` runs one rank, under the variables of any launcher.
CommandMain test_main;
CommandMain to_fsdp2_main;
/// `accel where PID`: prints what the ranks of a running job do. PID is its launcher or one of its ranks.
CommandMain where_main;

struct Command {
  const char* name;
  CommandMain* main;
  const char* help;
};

/// Returns a completion script for bash or zsh, generated from the options that the commands register; "" for any other
/// shell.
///
///     source <(accel --completion bash)
std::string completion_script(const std::string& shell, const std::vector<Command>& commands);

/// Runs `flags.command` according to the flags, the config file, the environment and the defaults, in this order of
/// precedence. Returns accel's exit code: 0, 1 if a rank failed, 2 if a rank reported a wrong configuration. `name` is
/// the prefix of the launcher's own messages.
int run_launch(const LaunchFlags& flags, const std::string& name);

/// Prints the flags of `accel launch` for completion; see kListOptions in command_line.hpp.
void list_launch_flags();

/// Runs one rank of `accel test`: checks what a training relies on, each check on all ranks together. The main process
/// prints what failed on which rank. Returns 0, or 1 if any check failed on any rank.
/// Source: accelerate/test_utils/scripts/test_script.py.
int run_self_test(int argc, char** argv);

}  // namespace accel::programs
