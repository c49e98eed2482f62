#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accel::programs {

/// Parses the arguments into what `app` was told of. What ends the program here is its exit code: a help that was asked
/// for is success, a wrong option kUsage; either is printed, a wrong option with the nearest one that there is.
///
/// In the names of options a hyphen and an underscore are the same, as in Accelerate. What follows PROGRAM, of an app
/// with `prefix_command` or `positionals_at_end`, or a `--`, is left as it is. The only argument kListOptions prints
/// what there is to complete: a line for the command and one for each of its subcommands, "SUBCOMMAND<TAB>WORD WORD
/// ...".
inline constexpr const char* kListOptions = "--list_options_for_completion";
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

/// The arguments with options spelled as `app` was told of them: --num-processes=4 as --num_processes=4.
std::vector<std::string> with_known_spelling(const CLI::App& app, const std::vector<std::string>& arguments);

/// "did you mean --ranks?" for an option that `app` lacks: the nearest one, or what another launcher's name for it
/// means here. "" if there is none.
std::string option_hint(const CLI::App& app, const std::string& argument);

/// Throws ConfigError, with the corrected line, if a program is named among the arguments of `command` without the `--`
/// before it.
void check_program_follows_dashes(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace accel::programs
