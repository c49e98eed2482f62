// accel: Accelerate's command line. Most of its commands come in later stages; until then it says so.
#include <iostream>
#include <string>

#include "sim/programs/data_check_command.hpp"
#include "sim/programs/exit_code.hpp"

namespace accel::programs {
namespace {

constexpr const char* kCommands =
    "accel: built is data-check: what becomes of every sample on 1 to 64 ranks (accel data-check --help); config, env, test,\n"
    "launch, estimate-memory and merge-weights are not built yet. Start a program with torchrun, mpirun or srun today, and\n"
    "simulated training with sim-run.\n";

int accel_main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "data-check") return data_check_main(argc - 1, argv + 1);
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
