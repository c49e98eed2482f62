// `sim-run plan`: prints which samples each rank reads, without running a model. With --requests it answers a stream of
// JSON requests, which the oracle compares with Accelerate's own loaders.
#include "reference/core/input/listed.hpp"
#include "sim/programs/sim_run/commands.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/plan_options.hpp"
#include "sim/programs/experiments/data_plan.hpp"
#include "sim/programs/experiments/plan_rendering.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  PlanRequest request;
  std::string requests_file, plot_file;
  bool json = false;
};

// Opening a folder succeeds on Linux and only reading fails, hence the explicit test.
int answer_file(const std::string& path) {
  std::ifstream file(path);
  check_config(path == "-" || (file.good() && !std::filesystem::is_directory(path)),
               "--requests: cannot read {}; expected a file, or - for standard input", path);
  std::istream& lines = path == "-" ? std::cin : file;
  for (std::string line; std::getline(lines, line);)
    std::cout << answer_plan_line(line, [](const PlanRequest& request) { return answer_plan(request); })
                     .dump(-1, ' ', false, Json::error_handler_t::replace)
              << '\n';
  if (lines.bad()) throw Error(fmt::format("--requests: {}: reading failed before the end of the file", path));
  // A full disk or a closed pipe must not look like a complete answer.
  if (!std::cout.flush()) throw Error("cannot write the answers to standard output");
  return 0;
}

int answer_flags(const PlanArguments& arguments) {
  const auto problems = problems_of(arguments.request);
  check_config(problems.empty(), "{}", listed(problems, "; "));
  std::vector<PlanEpoch> epochs;
  // With flags, an impossible plan is wrong usage of the command line, hence exit code 2.
  try {
    epochs = answer_plan(arguments.request);
  } catch (const ArgumentError& error) {
    throw ConfigError(error.what());
  }
  if (!arguments.plot_file.empty()) {
    std::ofstream plot(arguments.plot_file);
    plot << plan_svg(epochs);
    plot.close();
    check_config(plot.good(), "--plot: cannot write {}", arguments.plot_file);
  }
  std::cout << (arguments.json ? to_json(epochs).dump() + "\n" : plan_table(epochs)) << std::flush;
  return 0;
}

}  // namespace

int plan_main(int argc, char** argv) {
  PlanArguments arguments;
  CLI::App app("Prints which samples each rank reads, step by step, without running a model.", "sim-run plan");
  const auto required = add_plan_options(app, arguments.request);
  app.add_flag("--json", arguments.json, "JSON instead of a table");
  app.add_option("--plot", arguments.plot_file, "Draw the plan into this SVG file");
  auto* file = app.add_option("--requests", arguments.requests_file,
                              "Answer the requests of this file, one JSON object per line; - is standard input");
  // A file contains complete requests, so that flags next to it could only be ignored.
  for (auto* option : app.get_options()) {
    if (option != file && option->get_name() != "--help") file->excludes(option);
  }
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  if (file->count() > 0) return answer_file(arguments.requests_file);
  for (const auto* option : required)
    check_config(option->count() > 0, "plan: {} is missing; expected it, or --requests FILE", option->get_name());
  return answer_flags(arguments);
}

}  // namespace accel::programs
