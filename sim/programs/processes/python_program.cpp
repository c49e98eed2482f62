#include "sim/programs/processes/python_program.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regex>

#include "reference/config/environment.hpp"

namespace accel::programs {
namespace {

bool is_python(const std::string& command) {
  static const std::regex name("python(3(\\.[0-9]+)?)?");
  return std::regex_match(std::filesystem::path(command).filename().string(), name);
}

constexpr const char* kModulesThatStartRanks[] = {"pytest", "unittest", "torch.distributed.run",
                                                  "torch.distributed.launch", "accelerate.commands.launch"};

}  // namespace

bool is_python_program(const std::vector<std::string>& command) {
  return !command.empty() && python_program(command).has_value();
}

std::filesystem::path built_package_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "python";
}

std::string python_path(const std::filesystem::path& folder, const std::string& path) {
  return folder.string() + (path.empty() ? "" : ":" + path);
}

std::vector<std::string> with_interpreter(std::vector<std::string> command) {
  if (command.front().ends_with(".py")) command.insert(command.begin(), "python3");
  return command;
}

bool starts_ranks(const std::vector<std::string>& command) {
  if (command.empty() || !is_python(command.front())) return false;
  const auto module = std::find(command.begin(), command.end(), "-m");
  return module != command.end() && module + 1 != command.end() &&
         std::find(std::begin(kModulesThatStartRanks), std::end(kModulesThatStartRanks), *(module + 1)) !=
             std::end(kModulesThatStartRanks);
}

std::optional<RankProgram> python_program(const std::vector<std::string>& command,
                                          const std::vector<std::string>& preload) {
  if (command.front().ends_with(".py")) return python_program(with_interpreter(command), preload);
  if (!is_python(command.front())) return std::nullopt;
  RankProgram program{.command = {command.front()}, .forks_ranks = true};
  // The interpreter's own options end at the script, or at the -m or -c that replaces it.
  auto next = command.begin() + 1;
  for (; next != command.end() && next->starts_with("-") && *next != "-m" && *next != "-c"; ++next) {
    program.command.push_back(*next);
    const bool has_value = *next == "-W" || *next == "-X";
    if (has_value && next + 1 != command.end()) program.command.push_back(*++next);
  }
  program.command.insert(program.command.end(), {"-m", "simranks", "--"});
  program.command.insert(program.command.end(), next, command.end());
  program.environment["ACCEL_PRELOAD"] = fmt::format("{}", fmt::join(preload, ","));
  if (const auto folder = built_package_folder(); std::filesystem::exists(folder))
    program.environment["PYTHONPATH"] = python_path(folder, environment("PYTHONPATH").value_or(""));
  return program;
}

}  // namespace accel::programs
