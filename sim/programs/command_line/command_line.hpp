#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accel::programs {

/// Parses the arguments into the variables registered with `app`. Returns an exit code if the program must end:
/// kSuccess after printing a requested help, kUsage after printing what is wrong, with the nearest existing option.
///
/// Hyphens and underscores are the same in option names, as in Accelerate. Arguments after `--`, or after PROGRAM of an
/// app with `prefix_command` or `positionals_at_end`, are left unchanged. kListOptions as the only argument prints the
/// words to complete: one line for the command and one per subcommand, "SUBCOMMAND<TAB>WORD WORD ...".
inline constexpr const char* kListOptions = "--list_options_for_completion";
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

/// Returns the arguments with options spelled as they are registered with `app`: --num-processes=4 as
/// --num_processes=4.
std::vector<std::string> normalize_option_names(const CLI::App& app, const std::vector<std::string>& arguments);

/// Returns "did you mean --ranks?" for an option that `app` lacks, where --ranks is the nearest option or the
/// equivalent of another launcher's option. Returns "" if there is none.
std::string option_hint(const CLI::App& app, const std::string& argument);

/// Throws ConfigError, with the corrected line, if the arguments of `command` name a program without `--` before it.
void check_program_follows_dashes(const std::string& command, const std::vector<std::string>& arguments);

/// Removes `-- PROGRAM [ARGS...]` from the end of the arguments and returns the program; {} if there is none. CLI11
/// would interpret the program's options. Throws as check_program_follows_dashes.
std::vector<std::string> take_program(const std::string& command, int& argc, char** argv);

}  // namespace accel::programs
