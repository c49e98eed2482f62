#include <algorithm>
#include <string_view>

#include "sim/programs/command_line/user_program.hpp"
#include "sim/programs/sim_run/commands.hpp"

namespace accel::programs {

std::optional<int> run_program_command(int argc, char** argv, const ExperimentFiles& experiments) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "compare") return compare_main(argc - 1, argv + 1, experiments);
  if (first == "check") return check_main(argc - 1, argv + 1, experiments);
  if (first == "explore") return explore_main(argc - 1, argv + 1, experiments);
  if (first == "pipeline") return pipeline_main(argc - 1, argv + 1);
  if (first == "predict") return predict_main(argc - 1, argv + 1);
  if (first == "prove") return prove_main(argc - 1, argv + 1, experiments);
  if (first == "attach") return run_attached({argv + 2, argv + argc});
  const auto dashes = std::find(argv + 1, argv + argc, std::string_view("--"));
  if (dashes == argv + argc) return std::nullopt;
  return run_user_program({.options = {argv + 1, dashes}, .command = {dashes + 1, argv + argc}});
}

}  // namespace accel::programs
