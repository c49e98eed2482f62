// accel: Accelerate's command line. Its commands come in later stages; until then it says so.
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const bool help = command == "--help" || command == "-h";
  auto& out = help ? std::cout : std::cerr;
  if (!command.empty() && !help) out << "accel: '" << command << "' is not built yet\n";
  out << "accel: no command is built yet; config, env, test, launch, estimate-memory and merge-weights will be. Start a\n"
         "program with torchrun, mpirun or srun today, and simulated training with sim-run.\n";
  return help ? 0 : 2;
}
