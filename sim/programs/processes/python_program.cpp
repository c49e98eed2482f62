#include "sim/programs/processes/python_program.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <regex>

#include "reference/config/environment.hpp"

namespace accel::programs {
namespace {

// The package of the build tree; an installed one lies in the interpreter's own path.
std::filesystem::path package_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "python";
}

}  // namespace

std::optional<RankProgram> python_program(const std::vector<std::string>& command,
                                          const std::vector<std::string>& preload) {
  if (command.front().ends_with(".py")) {
    std::vector<std::string> with_interpreter{"python3"};
    with_interpreter.insert(with_interpreter.end(), command.begin(), command.end());
    return python_program(with_interpreter, preload);
  }
  static const std::regex name("python(3(\\.[0-9]+)?)?");
  if (!std::regex_match(std::filesystem::path(command.front()).filename().string(), name)) return std::nullopt;
  RankProgram program{.command = {command.front()}, .forks_ranks = true};
  // The interpreter's own options end at the script, or at the -m or -c that replaces it.
  auto next = command.begin() + 1;
  for (; next != command.end() && next->starts_with("-") && *next != "-m" && *next != "-c"; ++next) {
    program.command.push_back(*next);
    const bool has_value = *next == "-W" || *next == "-X";
    if (has_value && next + 1 != command.end()) program.command.push_back(*++next);
  }
  program.command.insert(program.command.end(), {"-m", "accel_sim", "--"});
  program.command.insert(program.command.end(), next, command.end());
  program.environment["ACCEL_PRELOAD"] = fmt::format("{}", fmt::join(preload, ","));
  if (std::filesystem::exists(package_folder())) {
    const auto path = environment("PYTHONPATH").value_or("");
    program.environment["PYTHONPATH"] = package_folder().string() + (path.empty() ? "" : ":" + path);
  }
  return program;
}

}  // namespace accel::programs
