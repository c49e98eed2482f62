#include "sim/programs/sim_run/program_forecast.hpp"

#include <filesystem>
#include <sstream>
#include <string_view>

#include "backends/launch/process.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/yaml_reader.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/sim_run/mesh_environment.hpp"

namespace accel::programs {
namespace {

// The first line that reports an error, without its prefix; the last line if there is none.
std::string error_in(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line)) {
    for (const std::string_view start : {"error: ", "sim-run: "}) {
      if (line.starts_with(start)) return line.substr(start.size());
    }
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

std::vector<std::string> under_layout(const ParallelismConfig& layout, const std::vector<std::string>& command) {
  auto words = environment_of(layout);
  if (layout.dp_shard_enabled() && !environment("ACCELERATE_USE_FSDP"))
    words.insert(words.end(), {"ACCELERATE_USE_FSDP=true", "FSDP_VERSION=2"});
  words.insert(words.begin(), "env");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

LayoutForecast forecast_program(const ForecastProgram& program, const ParallelismConfig& layout) {
  const TemporaryFolder folder;
  const auto costs = folder.path() + "/costs", output = folder.path() + "/output", error = folder.path() + "/error";
  std::vector<std::string> command{own_path(),  "--quiet",       "--ranks",        std::to_string(program.num_ranks),
                                   "--network", program.network, "--record-costs", costs,
                                   "--"};
  command.insert(command.end(), program.command.begin(), program.command.end());
  const auto run = run_child({.command = under_layout(layout, command)}, output, error);
  LayoutForecast forecast{.layout = layout};
  if (run.exit_code == kSuccess && std::filesystem::exists(costs)) {
    forecast.costs = rank_costs_of_json(accel::read_text(costs));
    return forecast;
  }
  forecast.problem =
      run.exit_code == kSuccess ? "the program has not called accel::run" : error_in(accel::read_text(error));
  if (forecast.problem.empty()) forecast.problem = "the program " + launcher::describe_exit_code(run.exit_code);
  return forecast;
}

}  // namespace accel::programs
