// sim-run without LibTorch, for programs whose ranks are processes of their own: that of Python's package.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iostream>

#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/sim_run/commands.hpp"

namespace accel::programs {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError(
      fmt::format("{}: needs the sim-run that `./dev build` makes in accel's source tree; this one of Python's package "
                  "has `-- PROGRAM [ARGS...]`, check, compare, explore, pipeline and prove",
                  what));
}

const ExperimentFiles kNoExperimentFiles{
    .check = [](const auto& file, const auto&, int) { refuse(file); },
    .make_target = [](const auto& file, const auto&, const auto&) -> std::unique_ptr<ExploreTarget> { refuse(file); },
    .overrides_of_proof = [](const auto& file, const auto&, int, std::int64_t) -> std::vector<std::string> {
      refuse(file);
    }};

int run_main(int argc, char** argv) {
  try {
    const std::string_view first = argc > 1 ? argv[1] : "";
    if (first == "layouts" && std::any_of(argv + 2, argv + argc, describes_runs))
      return layout_search_main(argc - 1, argv + 1);
    if (first == "layouts") refuse("sim-run layouts of an experiment, without a file of described runs,");
    if (first == "plan") refuse("sim-run plan");
    if (const auto code = run_program_command(argc, argv, kNoExperimentFiles)) return *code;
    check_program_follows_dashes("sim-run", {argv + 1, argv + argc});
    CLI::App app("Runs a program on simulated ranks: sim-run [OPTIONS] -- python train.py [ARGS...]", "sim-run");
    app.footer(
        "Other commands, each with --help: sim-run check, sim-run explore, sim-run compare, sim-run prove, "
        "sim-run pipeline, sim-run predict, sim-run layouts RUNS.yaml");
    RunOptions options;
    std::string experiment;
    add_run_options(app, options);
    app.add_option("EXPERIMENT", experiment)->group("");
    if (const auto code = parse_command_line(app, argc, argv)) return *code;
    if (!experiment.empty()) refuse(experiment);
    throw ConfigError("no program; expected sim-run [OPTIONS] -- PROGRAM [ARGS...]");
  } catch (const std::exception& error) {
    std::cerr << "sim-run: " << message_of(error) << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have had it ignored, and children could not be waited for
  return accel::programs::run_main(argc, argv);
}
