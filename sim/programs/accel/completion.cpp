// Shell completion, generated from the commands' own options: each command is asked for its words by kListOptions, so
// that a new option completes without a change here.

#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"

namespace accel::programs {
namespace {

struct Words {
  std::string path;   // "config", "config default"
  std::string words;  // "--config_file --num_processes default update"
};

// Returns the words that a command prints for completion. The command writes to std::cout, whose buffer is replaced
// during the call; nothing else runs at that time.
std::string listing_of(const Command& command) {
  std::ostringstream listing;
  auto* const terminal = std::cout.rdbuf(listing.rdbuf());
  std::string name = command.name, request = kListOptions;
  char* arguments[] = {name.data(), request.data(), nullptr};
  command.main(2, arguments);
  std::cout.rdbuf(terminal);
  return listing.str();
}

std::vector<Words> words_of(const std::vector<Command>& commands) {
  std::vector<Words> found;
  for (const auto& command : commands) {
    std::istringstream lines(listing_of(command));
    for (std::string line; std::getline(lines, line);) {
      const auto tab = line.find('\t');
      found.push_back(
          {.path = command.name + (tab == 0 ? "" : " " + line.substr(0, tab)), .words = line.substr(tab + 1)});
    }
  }
  return found;
}

// `help` is not a command of its own, but completes like one.
std::string names_of(const std::vector<Command>& commands) {
  std::string names;
  for (const auto& command : commands) names += std::string(command.name) + " ";
  return names + "help --help --version --completion";
}

// Formats one case per path. Paths with a subcommand come first, because a shell takes the first pattern that matches
// and "config" would match "config default" as well.
std::string cases_of(const std::vector<Command>& commands, const char* line) {
  std::string cases;
  for (const auto& [path, words] : words_of(commands)) {
    const bool has_subcommand = path.find(' ') != std::string::npos;
    const auto text = fmt::format(fmt::runtime(line), path, words);
    cases = has_subcommand ? text + cases : cases + text;
  }
  return cases;
}

// After the options of `launch` comes a program: both scripts complete files where no word fits. The second compgen
// accepts hyphens for underscores, as the commands do.
constexpr const char* kBash = R"(# Completion of accel for bash: source <(accel --completion bash)
_accel() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{0}"
  elif [ "${{COMP_WORDS[1]}}" = help ]; then
    words="{0}"
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} " in
{1}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ -z "${{COMPREPLY[*]}}" ] && [ "${{current:0:2}}" = "--" ]; then
    current="${{current:2}}"
    COMPREPLY=($(compgen -W "$words" -- "--${{current//-/_}}"))
  fi
}}
complete -o default -F _accel accel
)";

// zsh runs the file as the body of the function if it autoloads it from a folder of functions, and as a script if a
// user sources it. The last line distinguishes the two.
constexpr const char* kZsh = R"(#compdef accel
# Completion of accel for zsh: source <(accel --completion zsh)
_accel() {{
  local -a found
  if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
    found=({0})
  else
    case "$words[2] $words[3] " in
{1}    esac
  fi
  compadd -M 'm:{{-_}}={{_-}}' -- $found || _files
}}
if [[ $funcstack[1] = _accel ]]; then _accel "$@"; else compdef _accel accel; fi
)";

}  // namespace

std::string completion_script(const std::string& shell, const std::vector<Command>& commands) {
  if (shell == "bash")
    return fmt::format(kBash, names_of(commands), cases_of(commands, "      \"{0} \"*) words=\"{1}\" ;;\n"));
  if (shell == "zsh")
    return fmt::format(kZsh, names_of(commands), cases_of(commands, "      \"{0} \"*) found=({1}) ;;\n"));
  return "";
}

}  // namespace accel::programs
