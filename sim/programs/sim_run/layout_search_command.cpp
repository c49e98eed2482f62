// `sim-run layouts RUNS.yaml`: the fastest layouts of described training runs.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/predict/layout_search.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/found_layouts.hpp"

namespace accel::programs {
namespace {

using predict::TrainingRun;

struct SearchArguments {
  std::string runs, hardware, id;
  int gpus = 0;
  int best = 10;
  bool json = false;
};

std::vector<TrainingRun> chosen_runs(const SearchArguments& arguments) {
  std::vector<TrainingRun> runs;
  std::vector<std::string> problems, ids;
  for (const auto& described : predict::read_runs(arguments.runs)) {
    ids.push_back(described.run.id);
    if (!arguments.id.empty() && described.run.id != arguments.id) continue;
    if (!described.problem.empty()) problems.push_back(fmt::format("{}: {}", described.run.id, described.problem));
    runs.push_back(described.run);
    if (arguments.gpus > 0) runs.back().gpus = arguments.gpus;
  }
  if (runs.empty())
    problems.push_back(ids.empty() ? fmt::format("{}: no runs", arguments.runs)
                                   : fmt::format("--run {}: expected one of {}", arguments.id, listed(ids, ", ")));
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return runs;
}

}  // namespace

bool describes_runs(const std::string& file) {
  if (!std::filesystem::is_regular_file(file)) return false;
  try {
    const auto root = yaml_of(read_text(file), file);
    return root.IsMap() && (root["models"] || root["runs"] || root["systems"]);
  } catch (const ConfigError&) {
    return false;  // the command for experiments reports it
  }
}

int layout_search_main(int argc, char** argv) {
  SearchArguments arguments;
  CLI::App app(
      "Predicts the fastest layouts of described training runs that fit into the GPUs' memory. The layout of the "
      "description is ignored. Exit code 1: no layout fits.",
      "sim-run layouts");
  app.add_option("RUNS.yaml", arguments.runs, "Sections systems, models and runs, as for sim-run predict")->required();
  app.add_option("--ranks", arguments.gpus, "Number of GPUs (default: that of the run)")->check(CLI::Range(1, 1 << 20));
  app.add_option("--run", arguments.id, "Only the run of this id");
  app.add_option("--best", arguments.best, "Number of layouts to print")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--hardware", arguments.hardware, "Constants that replace those of configs/sim/hardware.yaml");
  app.add_flag("--json", arguments.json, "Print one JSON object per run");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  const auto hardware = predict::read_hardware(arguments.hardware);
  bool all_fit = true;
  for (const auto& run : chosen_runs(arguments)) {
    const auto search = predict::search_layouts(run, hardware, arguments.best);
    all_fit = all_fit && !search.fitting.empty();
    std::cout << (arguments.json ? found_layouts_json(run, search) : found_layouts_text(run, search));
  }
  return all_fit ? kSuccess : kFailure;
}

}  // namespace accel::programs
