#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/processes/supervisor.hpp"

namespace accel::programs {

/// Returns how to run the command on simulated ranks if it is Python's interpreter: package simranks imports what the
/// script needs and forks the ranks. A script, by its suffix .py, is run by python3. Null for any other command.
///
///     python_program({"python3", "-u", "train.py", "--epochs", "3"})
///     // python3 -u -m simranks -- train.py --epochs 3
/// `preload`: modules that the ranks share besides.
std::optional<RankProgram> python_program(const std::vector<std::string>& command,
                                          const std::vector<std::string>& preload = {});

/// Whether the command, which may be empty, is such a program.
bool is_python_program(const std::vector<std::string>& command);

/// Where a build tree keeps package simranks. An installed package lies in the interpreter's own path.
std::filesystem::path built_package_folder();

/// PYTHONPATH with this folder first.
std::string python_path(const std::filesystem::path& folder, const std::string& path);

/// The command, with python3 before a script.
std::vector<std::string> with_interpreter(std::vector<std::string> command);

/// Whether the command is Python with a module that starts ranks or tests, such as `python -m pytest`.
bool starts_ranks(const std::vector<std::string>& command);

}  // namespace accel::programs
