// accel: the command line of Accelerate. Each command is a function with the signature of main in a separate file;
// this file only selects one, so that a command can also be listed for completion without running it.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

const std::vector<Command> kCommands = {
    {"config", config_main, "Ask how to launch programs on this machine, and write a configuration file"},
    {"data-check", data_check_main, "Report duplicated and dropped samples on 1 to 64 ranks"},
    {"env", env_main, "Print versions, machine and configuration, for a bug report"},
    {"estimate-memory", estimate_memory_main, "Estimate the memory for a model's weights and training, also per rank"},
    {"launch", launch_main, "Start a program on real ranks, on one or more machines, or on simulated ranks"},
    {"merge-weights", merge_weights_main, "Merge the weights of a sharded checkpoint into one file"},
    {"test", test_main, "Test the ranks that launch would start"},
    {"to-fsdp2", to_fsdp2_main, "Convert a configuration of FSDP version 1 to version 2"},
    {"where", where_main, "Print what the ranks of a running job do"},
};

std::string help_text() {
  std::string text = "Usage: accel COMMAND [ARGS...]; accel COMMAND --help or accel help COMMAND prints its options\n";
  for (const auto& command : kCommands) text += fmt::format("  {:<16} {}\n", command.name, command.help);
  return text + "accel --completion bash|zsh prints a completion script; accel --version prints the version\n";
}

// Explains commands that Accelerate has and this library lacks; null for any other.
const char* unsupported_command_text(const std::string& command) {
  if (command == "tpu-config") return "tpu-config: unsupported; this library runs on CPUs and NVIDIA GPUs only\n";
  return nullptr;
}

const Command* find_command(const std::string& name) {
  const auto found =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& command) { return name == command.name; });
  return found == kCommands.end() ? nullptr : &*found;
}

// The script goes to standard output alone, so that `source <(accel --completion bash)` never executes an error
// message.
int print_completion(const std::string& shell) {
  const auto script = completion_script(shell, kCommands);
  if (script.empty()) std::cerr << "accel: --completion: expected bash or zsh, got '" << shell << "'\n";
  std::cout << script;
  return script.empty() ? kUsage : kSuccess;
}

int run_command(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
  if (const auto* command = find_command(name)) return command->main(argc - 1, argv + 1);
  // `accel help COMMAND` becomes `COMMAND --help`, so that each command formats its own help.
  if (const auto* command = find_command(second); command != nullptr && name == "help") {
    std::string help = "--help";
    char* arguments[] = {argv[2], help.data(), nullptr};
    return command->main(2, arguments);
  }
  if (name == "--completion") return print_completion(second);
  if (name == "--version") {
    std::cout << "accel " << kVersion << '\n';
    return kSuccess;
  }
  const bool is_help = name == "--help" || name == "-h" || (name == "help" && second.empty());
  const auto& wrong = name == "help" ? second : name;
  if (const auto* answer = unsupported_command_text(wrong))
    std::cerr << "accel: " << answer;
  else if (!wrong.empty() && !is_help)
    std::cerr << "accel: unknown command '" << wrong << "'; expected one of these:\n";
  (is_help ? std::cout : std::cerr) << help_text();
  return is_help ? kSuccess : kUsage;
}

// Exceptions end here: every command reports errors by throwing, and only the exit code and the message leave the
// program.
int run_main(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "accel: " << message_of(error) << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  // An ignored SIGCHLD is inherited from the parent, and the kernel then discards exit codes before waitpid sees them.
  std::signal(SIGCHLD, SIG_DFL);
  accel::end_process(accel::programs::run_main(argc, argv));
}
