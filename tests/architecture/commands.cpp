// The options are found in the sources, not in the output of --help, so that the check needs no build of the programs.
#include "tests/architecture/commands.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <sstream>
#include <string_view>

#include "tests/architecture/sources.hpp"

namespace accel::testing {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

/// Words of a command line; what a shell does with quotes and parentheses does not matter here.
Lines words_of(std::string command) {
  for (auto& letter : command) {
    if (std::string_view("\"'$();|&").find(letter) != std::string_view::npos) letter = ' ';
  }
  std::istringstream in(command);
  Lines words;
  for (std::string word; in >> word && !word.starts_with('#');) words.push_back(word);
  return words;
}

std::string sources_of(const Lines& folders) {
  std::string text;
  for (const auto& file : sources_below(folders)) text += text_of(file);
  return text;
}

/// ./dev and the scripts that it runs.
std::string sources_of_dev() {
  auto text = text_of("dev");
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/dev")) {
    if (entry.path().extension() == ".sh") text += text_of(fs::relative(entry.path(), source_dir()));
  }
  return text;
}

/// `--name` as CLI11 reads it: `"--name"`, or one of several in a string.
bool declares_option(const std::string& sources, const std::string& option) {
  for (auto at = sources.find(option); at != std::string::npos; at = sources.find(option, at + 1)) {
    const char before = at == 0 ? ' ' : sources[at - 1],
               after = sources[std::min(at + option.size(), sources.size() - 1)];
    const bool ends = std::isalnum(static_cast<unsigned char>(after)) == 0 && after != '-' && after != '_';
    if (ends && (before == '"' || before == ',' || before == '!')) return true;
  }
  return false;
}

/// The settings of a launch are flags under their names, in which a hyphen is an underscore.
bool declares_key(const std::string& sources, const std::string& option) {
  auto name = option.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return sources.find("Key(\"" + name + "\"") != std::string::npos;
}

bool knows_option(const Declarations& declared, const std::string& program, const std::string& option) {
  if (option == "--help") return true;
  if (program == "dev") return declared.dev.find(option + ")") != std::string::npos;
  if (program == "accel") return declares_option(declared.accel, option) || declares_key(declared.accel, option);
  return declares_option(declared.sim_run, option);
}

/// Whether `name` is a command of `./dev` or `accel`.
bool knows_command(const Declarations& declared, const std::string& program, const std::string& name) {
  if (program == "dev") return declared.dev.find("\n  " + name + ") ") != std::string::npos;
  return name == "help" || declared.accel.find("{\"" + name + "\", ") != std::string::npos;
}

}  // namespace

Declarations::Declarations()
    : dev(sources_of_dev()),
      sim_run(sources_of({"sim/programs/sim_run", "sim/programs/rehearsal", "sim/programs/sim_calibrate",
                          "sim/programs/command_line", "sim/programs/experiments"}) +
              text_of("reference/config/plugins/data_loader_configuration.hpp")),
      accel(sources_of(
          {"sim/programs/accel", "sim/programs/command_line", "sim/programs/experiments", "reference/config"})) {}

Lines problems_of_command(const Declarations& declared, const std::string& command) {
  static const std::set<std::string> programs{"dev", "sim-run", "sim-calibrate", "accel"};
  Lines problems;
  std::string program;
  const auto words = words_of(command);
  for (std::size_t place = 0; place < words.size(); ++place) {
    const auto& word = words[place];
    const auto name = fs::path(word).filename().string();
    if (programs.contains(name) && (name != "dev" || word == "./dev")) {
      program = name;
      const bool has_command =
          place + 1 < words.size() && std::islower(static_cast<unsigned char>(words[place + 1][0]));
      if ((name != "dev" && name != "accel") || !has_command) continue;
      const auto& subcommand = words[++place];
      if (!knows_command(declared, name, subcommand)) problems.push_back(command + ": no command " + subcommand);
      if (name == "dev" && subcommand == "sim") program = "sim-run";  // which gets the options
    } else if (word == "--" || word == "./train") {
      program.clear();  // what follows belongs to the user's program
    } else if (!program.empty() && word.starts_with("--")) {
      const auto option = word.substr(0, word.find('='));
      if (!knows_option(declared, program, option)) problems.push_back(command + ": " + program + " lacks " + option);
    }
  }
  return problems;
}

}  // namespace accel::testing
