#pragma once

#include <optional>

namespace CLI {
class App;
}

namespace accel::programs {

/// Parses the arguments into what `app` was told of. What ends the program here is its exit code: a help that was asked for
/// is success, a wrong option kUsage; either is printed.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

}  // namespace accel::programs
