// accel: Accelerate's command line.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "sim/programs/accel/commands.hpp"
#include "sim/programs/runtime/exit_code.hpp"

namespace accel::programs {
namespace {

const std::vector<Command> kCommands = {
    {"config", config_main, "how programs are to be launched on this machine: asks, and writes a file"},
    {"data-check", data_check_main, "what becomes of every sample on 1 to 64 ranks"},
    {"env", env_main, "versions, machine and configuration, for a bug report"},
    {"estimate-memory", estimate_memory_main, "what a model's weights and its training need, of each rank too"},
    {"launch", launch_main, "a program on real ranks, here and on other machines, or on simulated ones"},
    {"merge-weights", merge_weights_main, "one file of weights from a sharded checkpoint"},
    {"test", test_main, "whether all is well on the ranks that launch would start"},
    {"to-fsdp2", to_fsdp2_main, "a configuration of FSDP version 1 as one of version 2"},
};

std::string help_text() {
  std::string text = "accel COMMAND --help, or accel help COMMAND:\n";
  for (const auto& command : kCommands) text += fmt::format("  {:<16} {}\n", command.name, command.help);
  return text + "accel --completion bash|zsh: a script that completes all of it; accel --version\n";
}

// What Accelerate has, and this library has not.
const char* answer_to(const std::string& command) {
  if (command == "tpu-config") return "tpu-config: there are no TPUs here; this library runs on CPUs and NVIDIA GPUs\n";
  return nullptr;
}

const Command* find_command(const std::string& name) {
  const auto found =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& command) { return name == command.name; });
  return found == kCommands.end() ? nullptr : &*found;
}

int print_completion(const std::string& shell) {
  const auto script = completion_script(shell, kCommands);
  if (script.empty()) std::cerr << "accel: --completion: expected bash or zsh, got '" << shell << "'\n";
  std::cout << script;
  return script.empty() ? kUsage : kSuccess;
}

int run_command(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
  if (const auto* command = find_command(name)) return command->main(argc - 1, argv + 1);
  if (const auto* command = find_command(second); command != nullptr && name == "help") {
    std::string help = "--help";
    char* arguments[] = {argv[2], help.data(), nullptr};
    return command->main(2, arguments);
  }
  if (name == "--completion") return print_completion(second);
  if (name == "--version") {
    std::cout << "accel " << ACCEL_VERSION << '\n';
    return kSuccess;
  }
  const bool is_help = name == "--help" || name == "-h" || (name == "help" && second.empty());
  const auto& wrong = name == "help" ? second : name;
  if (const auto* answer = answer_to(wrong))
    std::cerr << "accel: " << answer;
  else if (!wrong.empty() && !is_help)
    std::cerr << "accel: '" << wrong << "' is not built yet, or no command\n";
  (is_help ? std::cout : std::cerr) << help_text();
  return is_help ? kSuccess : kUsage;
}

int run_main(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "accel: " << error.what() << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have had it ignored, and children could not be waited for
  accel::programs::end_process(accel::programs::run_main(argc, argv));
}
