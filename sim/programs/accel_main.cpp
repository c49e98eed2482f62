// accel: Accelerate's command line. Most of its commands come in later stages; until then it says so.
#include <iostream>
#include <string>

#include "sim/programs/data_check_command.hpp"
#include "sim/programs/exit_code.hpp"
#include "sim/programs/weights_commands.hpp"

namespace accel::programs {
namespace {

constexpr const char* kCommands =
    "accel COMMAND --help:\n"
    "  data-check       what becomes of every sample on 1 to 64 ranks\n"
    "  estimate-memory  what a model's weights and its training need, of each rank too\n"
    "  merge-weights    one file of weights from a sharded checkpoint\n"
    "config, env, test and launch are not built yet. Start a program with torchrun, mpirun or srun today, and simulated training\n"
    "with sim-run.\n";

int accel_main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "data-check") return data_check_main(argc - 1, argv + 1);
  if (command == "merge-weights") return merge_weights_main(argc - 1, argv + 1);
  if (command == "estimate-memory") return estimate_memory_main(argc - 1, argv + 1);
  const bool is_help = command == "--help" || command == "-h";
  if (!command.empty() && !is_help) std::cerr << "accel: '" << command << "' is not built yet, or no command\n";
  (is_help ? std::cout : std::cerr) << kCommands;
  return is_help ? kSuccess : kUsage;
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  try {
    return accel::programs::accel_main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "accel: " << error.what() << std::endl;
    return accel::programs::exit_code_of(error);
  }
}
