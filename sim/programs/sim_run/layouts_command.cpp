// `sim-run layouts`: predicts step time and memory per rank of a program under every layout of a mesh, and ranks them.
// LayoutForecaster and forecast_program predict one layout; this file chooses the layouts and writes the results.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <unistd.h>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/predict/layout_search.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/experiments/described_experiment.hpp"
#include "sim/programs/experiments/layout_forecast.hpp"
#include "sim/programs/layouts/layout_proof.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/found_layouts.hpp"
#include "sim/programs/sim_run/layouts_page.hpp"
#include "sim/programs/sim_run/program_forecast.hpp"

namespace accel::programs {
namespace {

constexpr int kBest = 10;

struct LayoutsArguments {
  RunOptions run = {.rank_counts = {64}};
  std::vector<std::string> overrides;
  bool json = false;
  std::vector<std::string> axes;
  std::vector<std::string> command;
  std::string experiment, gpu, hardware;
  int best = kBest;

  [[nodiscard]] const std::string& network() const { return run.rehearsal.network; }
  [[nodiscard]] const std::string& report() const { return run.rehearsal.report; }
};

void check(const LayoutsArguments& arguments) {
  // By formulas the number of GPUs is not that of threads.
  auto problems = arguments.gpu.empty() ? problems_of(arguments.run) : std::vector<std::string>();
  const auto note = [&](const std::function<void()>& read) {
    try {
      read();
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  };
  const int ranks = arguments.run.ranks();
  if (!arguments.gpu.empty() && !(arguments.network().empty() && arguments.report().empty()))
    problems.emplace_back("--gpu: cannot be combined with --network or --report; expected one or the other");
  if (!arguments.gpu.empty() && (arguments.run.ranks() < 1 || arguments.run.ranks() > 1 << 20))
    problems.push_back(fmt::format("--ranks {}: expected 1 to {}", arguments.run.ranks(), 1 << 20));
  if (!arguments.gpu.empty() && !arguments.axes.empty())
    problems.emplace_back("--axes: cannot be combined with --gpu; leave it out");
  if (arguments.gpu.empty() && (!arguments.hardware.empty() || arguments.best != kBest))
    problems.emplace_back("--hardware and --best: expected together with --gpu");
  if (arguments.gpu.empty() && arguments.network().empty())
    problems.emplace_back("--network: missing; expected a file with the costs of communication and compute, or --gpu");
  else if (ranks >= 1 && arguments.gpu.empty())
    note([&] { Rehearsal(arguments.run.rehearsal, ranks); });
  if (arguments.experiment.empty() == arguments.command.empty())
    problems.emplace_back("layouts: expected an experiment file or `-- PROGRAM [ARGS...]`");
  if (is_python_program(arguments.command))
    problems.emplace_back(
        "layouts: expected a program that calls accel::run, not one in Python; describe its model for `sim-run layouts "
        "RUNS.yaml`");
  if (!arguments.command.empty() && !(arguments.gpu.empty() && arguments.overrides.empty()))
    problems.emplace_back("--gpu and --set: only experiments support these options; leave them out");
  if (!arguments.experiment.empty() && ranks >= 1)
    note([&] { read_experiment(arguments.experiment, arguments.overrides, ranks); });
  check_config(problems.empty(), "{}", listed(problems, "\n"));
}

// Words with characters that a shell interprets are quoted.
std::string command_of_experiment(const LayoutsArguments& arguments, const std::vector<std::string>& overrides) {
  auto text = fmt::format("sim-run --ranks {} --network {}", arguments.run.ranks(), arguments.network());
  for (const auto& override : overrides) {
    const bool is_plain = override.find_first_of(" {}[]'\"\\$*") == std::string::npos;
    text += is_plain ? " --set " + override : fmt::format(" --set '{}'", override);
  }
  return text + " " + arguments.experiment;
}

// By formulas, from the shape of the model. Pipelines are among the layouts.
int search_on_gpus(const LayoutsArguments& arguments) {
  const int ranks = arguments.run.ranks();
  const auto hardware = predict::read_hardware(arguments.hardware);
  std::vector<std::string> names;
  for (const auto& [name, gpu] : hardware.gpus) names.push_back(name);
  check_config(hardware.gpus.contains(arguments.gpu), "--gpu {}: expected one of {}", arguments.gpu,
               listed(names, ", "));
  const auto run = described(read_experiment(arguments.experiment, arguments.overrides, ranks), ranks, arguments.gpu);
  const auto search = predict::search_layouts(run, hardware, arguments.best);
  std::cout << (arguments.json ? found_layouts_json(run, search) : found_layouts_text(run, search)) << std::flush;
  return search.fitting.empty() ? kFailure : kSuccess;
}

std::string command_of_program(const LayoutsArguments& arguments, const ParallelismConfig& layout) {
  std::vector<std::string> command{"sim-run",   "--ranks",           std::to_string(arguments.run.ranks()),
                                   "--network", arguments.network(), "--"};
  command.insert(command.end(), arguments.command.begin(), arguments.command.end());
  return shell_line(under_layout(layout, command));
}

std::vector<ParallelismConfig> chosen_layouts(const LayoutsArguments& arguments) {
  auto layouts = all_layouts(arguments.run.ranks(), {.shards = true});
  const auto is_chosen = [&](const auto& axis) {
    return arguments.axes.empty() ||
           std::find(arguments.axes.begin(), arguments.axes.end(), axis.name) != arguments.axes.end();
  };
  std::erase_if(layouts, [&](const auto& layout) {
    return std::any_of(mesh_axes().begin(), mesh_axes().end(),
                       [&](const auto& axis) { return layout.*axis.size > 1 && !is_chosen(axis); });
  });
  return layouts;
}

int run(const LayoutsArguments& arguments) {
  check(arguments);
  if (!arguments.gpu.empty()) return search_on_gpus(arguments);
  const int ranks = arguments.run.ranks();
  std::optional<LayoutForecaster> experiment;
  if (!arguments.experiment.empty())
    experiment.emplace(arguments.experiment, arguments.overrides, ranks, arguments.network());
  const ForecastProgram program{arguments.command, ranks, arguments.network()};
  std::vector<LayoutForecast> forecasts;
  const auto layouts = chosen_layouts(arguments);
  for (const auto& layout : layouts) {
    // A layout of a large model takes minutes.
    if (isatty(STDERR_FILENO) != 0)
      std::cerr << fmt::format("layout {} of {}: {}\n", forecasts.size() + 1, layouts.size(), name_of(layout));
    auto& forecast = forecasts.emplace_back(experiment ? (*experiment)(layout) : forecast_program(program, layout));
    forecast.command = experiment ? command_of_experiment(arguments, experiment->overrides_of(layout))
                                  : command_of_program(arguments, layout);
  }
  auto ranking = rank_layouts(std::move(forecasts));
  ranking.facts = {{"program", experiment ? arguments.experiment : shell_line(arguments.command)},
                   {"ranks", std::to_string(ranks)},
                   {"network", arguments.network()}};
  if (!arguments.report().empty()) {
    std::filesystem::create_directories(arguments.report());
    write_text((std::filesystem::path(arguments.report()) / "index.html").string(), layouts_page(ranking));
  }
  std::cout << (arguments.json ? layouts_json(ranking) : layouts_text(ranking)) << std::flush;
  return ranking.layouts.empty() ? kFailure : kSuccess;
}

}  // namespace

int layouts_main(int argc, char** argv) {
  LayoutsArguments arguments;
  arguments.command = take_program("sim-run layouts", argc, argv);
  CLI::App app(
      "Predicts the step time and the memory per rank of a program under every mesh of the given number of ranks, "
      "without running all of them, and ranks the meshes. A program's batch size is that of all ranks. Exit code 1: no "
      "mesh fits.",
      "sim-run layouts");
  app.add_option("--ranks", arguments.run.rank_counts.front(), "Number of ranks")->capture_default_str();
  app.add_option("--network", arguments.run.rehearsal.network,
                 "Costs of communication and compute (YAML); required without --gpu");
  app.add_option(
      "--gpu", arguments.gpu,
      "Predict by formulas for GPUs of this name in hardware.yaml, without running the experiment; also tries "
      "pipelines. The model must be a gpt");
  app.add_option("--hardware", arguments.hardware, "With --gpu: constants that replace those of hardware.yaml");
  app.add_option("--best", arguments.best, "With --gpu: number of layouts to print")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  std::vector<std::string> names;
  for (const auto& axis : mesh_axes()) names.emplace_back(axis.name);
  app.add_option("--axes", arguments.axes, "Only meshes of these axes, such as dp_shard,tp; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_flag("--json", arguments.json, "Print the results as JSON");
  app.add_option("--report", arguments.run.rehearsal.report, "Write an HTML page with the results into this folder");
  app.add_option(
      "EXPERIMENT", arguments.experiment,
      "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program. A file of described runs has its own options: "
      "sim-run layouts RUNS.yaml --help");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return run(arguments);
}

}  // namespace accel::programs
