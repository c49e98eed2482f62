#pragma once

#include <string>
#include <vector>

#include "sim/programs/accel/launch_flags.hpp"

namespace accel::programs {

/// `accel launch [flags] PROGRAM [ARGS...]`; `argv[0]` is the command. Returns the exit code; throws ConfigError for
/// wrong usage.
int launch_main(int argc, char** argv);

/// Runs `flags.command` as the flags, the config file, the environment and the defaults say, and returns accel's exit
/// code: 0, 1 if a rank failed, 2 if one found its configuration wrong. `name` stands in front of what the launcher has
/// to say.
int run_launch(const LaunchFlags& flags, const std::string& name);

/// The flags, as a shell's completion asks for them: command_line.hpp, kListOptions.
void list_launch_flags();

}  // namespace accel::programs
