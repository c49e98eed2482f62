// What all programs share on top of CLI11: hyphens and underscores are the same in option names, as in Accelerate;
// unknown options come with a suggestion; and shells can list the options for completion.
#include "sim/programs/command_line/command_line.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "reference/config/nearest_name.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Returns "num-processes" for --num-processes and --num-processes=4, and "" if the argument is not a long option.
std::string long_name(const std::string& argument) {
  return argument.starts_with("--") && argument.size() > 2 ? argument.substr(2, argument.find('=') - 2) : "";
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options())
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  return names;
}

// An exact match wins over one that differs in hyphens, in case an app ever has options that differ only in them.
std::string normalize_option_name(const CLI::App& app, const std::string& argument) {
  const auto name = long_name(argument);
  const auto names = long_names(app);
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return argument;
  const auto same = std::find_if(names.begin(), names.end(), [&](const std::string& other) {
    return with_underscores(other) == with_underscores(name);
  });
  return same == names.end() ? argument : "--" + *same + argument.substr(2 + name.size());
}

// Returns the minimum number of arguments after this one that are its values. They must not be respelled: the value of
// an option may look like an option.
std::size_t values_after(const CLI::App& app, const std::string& argument) {
  if (argument.find('=') != std::string::npos) return 0;
  const auto* option = app.get_option_no_throw(argument);
  return option == nullptr ? 0 : static_cast<std::size_t>(std::max(option->get_items_expected_min(), 0));
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// CLI11's own lookup throws for an unknown name, and here a name that is not a subcommand is normal.
const CLI::App* subcommand_of(const CLI::App& app, const std::string& name) {
  for (const auto* subcommand : subcommands_of(app)) {
    if (subcommand->get_name() == name) return subcommand;
  }
  return nullptr;
}

// Prints one line for the command and one per subcommand: "PATH<TAB>WORD WORD ...", with an empty path for the command.
void list_options(const CLI::App& app, const std::string& path) {
  std::cout << path << '\t';
  for (const auto& name : long_names(app)) std::cout << "--" << name << ' ';
  const auto subcommands = subcommands_of(app);
  for (const auto* subcommand : subcommands) std::cout << subcommand->get_name() << ' ';
  std::cout << '\n';
  for (const auto* subcommand : subcommands) list_options(*subcommand, subcommand->get_name());
}

// Names that other launchers (mpirun, torchrun, accelerate, deepspeed) use for the number of ranks.
constexpr const char* kRankOptionAliases[] = {
    "n", "np", "nproc", "nprocs", "num_procs", "num_processes", "nproc_per_node", "num_ranks", "world_size"};

void print_hints(const CLI::App& app) {
  for (const auto& argument : app.remaining()) {
    if (const auto hint = option_hint(app, argument); !hint.empty()) std::cerr << argument << ": " << hint << '\n';
  }
}

// Experiments and requests may be executable by accident, e.g. on file systems without permission bits.
bool is_program(const std::string& argument) {
  const fs::path path(argument);
  const bool is_data = path.extension() == ".yaml" || path.extension() == ".yml" || path.extension() == ".json" ||
                       path.extension() == ".jsonl";
  return !is_data && fs::is_regular_file(path) && access(argument.c_str(), X_OK) == 0;
}

}  // namespace

// Names of other launchers come before the nearest spelling: --np is close to no option, but clearly means --ranks.
std::string option_hint(const CLI::App& app, const std::string& argument) {
  const auto name = with_underscores(long_name(argument));
  if (name.empty()) return "";
  const auto names = long_names(app);
  const bool has_ranks = std::find(names.begin(), names.end(), "ranks") != names.end();
  const bool means_ranks =
      std::find(std::begin(kRankOptionAliases), std::end(kRankOptionAliases), name) != std::end(kRankOptionAliases);
  const auto nearest = has_ranks && means_ranks ? std::optional<std::string>("ranks") : nearest_name(name, names);
  return nearest ? fmt::format("did you mean --{}?", *nearest) : "";
}

// Without this check the program would be taken for an experiment file, and the error would be about YAML.
void check_program_follows_dashes(const std::string& command, const std::vector<std::string>& arguments) {
  const auto program = std::find_if(arguments.begin(), arguments.end(), is_program);
  if (program == arguments.end()) return;
  const std::vector<std::string> options(arguments.begin(), program), rest(program, arguments.end());
  throw ConfigError(fmt::format("{} is a program; put `--` before it: {}{} -- {}", *program, command,
                                options.empty() ? "" : fmt::format(" {}", fmt::join(options, " ")),
                                fmt::join(rest, " ")));
}

std::vector<std::string> take_program(const std::string& command, int& argc, char** argv) {
  const auto dashes = std::find(argv, argv + argc, std::string_view("--"));
  if (dashes == argv + argc) {
    check_program_follows_dashes(command, {argv + 1, argv + argc});
    return {};
  }
  std::vector<std::string> program(dashes + 1, argv + argc);
  argc = static_cast<int>(dashes - argv);
  return program;
}

// Stops at `--` and at PROGRAM: what follows belongs to the user's program and must arrive unchanged.
std::vector<std::string> normalize_option_names(const CLI::App& app, const std::vector<std::string>& arguments) {
  auto spelled = arguments;
  const auto* command = &app;
  for (std::size_t index = 0; index < spelled.size(); ++index) {
    auto& argument = spelled[index];
    const bool is_option = argument.size() > 1 && argument[0] == '-';
    if (argument == "--" || (!is_option && (command->get_prefix_command() || command->get_positionals_at_end()))) break;
    argument = normalize_option_name(*command, argument);
    if (is_option)
      index += values_after(*command, argument);
    else if (const auto* subcommand = subcommand_of(*command, argument))
      command = subcommand;
  }
  return spelled;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string(kListOptions)) {
    list_options(app, "");
    return kSuccess;
  }
  auto arguments = normalize_option_names(app, {argv + std::min(argc, 1), argv + argc});
  std::reverse(arguments.begin(), arguments.end());  // CLI11 parses a vector from its end
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    // CLI11 reports --help as an exception, too. Its own exit codes (100 and above) do not leave this function.
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error);
    if (!is_help) print_hints(app);
    return is_help ? kSuccess : kUsage;
  }
  return std::nullopt;
}

}  // namespace accel::programs
