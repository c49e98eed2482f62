#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

/// The command line of `accel launch`: Accelerate's flags, with hyphens or underscores, up to PROGRAM. Everything after
/// PROGRAM belongs to the program.
///
///     const auto flags = parse_launch_flags({"--num-processes", "4", "./train", "--epochs", "3"});
///     flags.integer("num_processes");   // 4
///
/// Thread rule: values.
struct LaunchFlags {
  std::map<std::string, std::string> given;  ///< by name with underscores; the value of a switch is "true"
  std::vector<std::string> command;          ///< PROGRAM and its arguments

  [[nodiscard]] bool has(const std::string& name) const { return given.contains(name); }
  [[nodiscard]] std::optional<std::string> text(const std::string& name) const;
  [[nodiscard]] std::optional<int> integer(const std::string& name) const;
  [[nodiscard]] std::optional<double> number(const std::string& name) const;
};

/// Parses the command line. `needs_program` makes a missing PROGRAM an error. Throws ConfigError with all problems: an
/// unknown flag (with the nearest known one), a missing or impossible value, a flag that has no meaning for a C++
/// program (with the reason).
LaunchFlags parse_launch_flags(const std::vector<std::string>& arguments, bool needs_program = true);

/// Returns the flags in groups, as `accel launch --help` prints them.
std::string launch_flags_help();

/// Returns all accepted flags with their dashes, for a shell's completion.
std::vector<std::string> launch_flag_names();

}  // namespace accel::programs
