#pragma once

#include <string>
#include <vector>

/// The commands of `accel`, each in a file of its name: NAME_command.cpp.
namespace accel::programs {

struct LaunchFlags;

/// `argv[0]` is the name of the command. Returns the exit code; throws ConfigError for wrong usage.
using CommandMain = int(int argc, char** argv);

/// Asks for a configuration and writes it; with any key as a flag it asks nothing. Its subcommands default and update
/// are Accelerate's.
CommandMain config_main;
CommandMain data_check_main;
CommandMain env_main;
CommandMain estimate_memory_main;
/// `accel launch [flags] PROGRAM [ARGS...]`.
CommandMain launch_main;
CommandMain merge_weights_main;
/// Starts `accel test --inner` as `accel launch` would start a program, with the same flags and files, and says whether
/// all is well. `accel test --inner` is one rank of it, under any launcher's variables.
CommandMain test_main;
CommandMain to_fsdp2_main;

struct Command {
  const char* name;
  CommandMain* main;
  const char* help;
};

/// A completion script for bash or zsh, made from what the commands are told of; empty for another shell.
///
///     source <(accel --completion bash)
std::string completion_script(const std::string& shell, const std::vector<Command>& commands);

/// Runs `flags.command` as the flags, the config file, the environment and the defaults say, and returns accel's exit
/// code: 0, 1 if a rank failed, 2 if one found its configuration wrong. `name` stands in front of what the launcher has
/// to say.
int run_launch(const LaunchFlags& flags, const std::string& name);

/// The flags of `accel launch`, as a shell's completion asks for them: command_line.hpp, kListOptions.
void list_launch_flags();

/// One rank of `accel test`: what a training relies on, each on all ranks together; the main process tells what failed,
/// and where. Returns 0, or 1 if anything failed on any rank. Source: accelerate/test_utils/scripts/test_script.py.
int run_self_test(int argc, char** argv);

}  // namespace accel::programs
