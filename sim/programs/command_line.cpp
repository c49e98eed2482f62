#include "sim/programs/command_line.hpp"

#include <CLI/CLI.hpp>

#include "sim/programs/exit_code.hpp"

namespace accel::programs {

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error);
    return is_help ? kSuccess : kUsage;
  }
  return std::nullopt;
}

}  // namespace accel::programs
