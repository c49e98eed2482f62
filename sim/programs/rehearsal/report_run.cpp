// What is left to do when a user's program has run on simulated ranks, as threads or as processes.
#include "sim/programs/rehearsal/report_run.hpp"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/report/run_report.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

// In a sweep over numbers of ranks, sim-run starts a user program once per number of ranks. Each run is a separate
// process, so the points of the runs before it arrive in a file, and this run appends its own.

}  // namespace

void add_sweep_point(const std::string& path, const sim::ScalePoint& point) {
  const Json json{{"ranks", point.ranks},
                  {"step_seconds", point.step_seconds},
                  {"efficiency", point.efficiency},
                  {"exposed_communication_seconds", point.exposed_communication_seconds},
                  {"straggler_seconds", point.straggler_seconds}};
  std::ofstream out(path, std::ios::app);
  out << json.dump() << std::endl;
  check_config(out.good(),
               "{}: cannot write the results of the sweep; check the permissions and the free space of the folder",
               path);
}

std::vector<sim::ScalePoint> read_sweep_points(const std::string& path) {
  std::vector<sim::ScalePoint> points;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    try {
      const auto json = Json::parse(line);
      points.push_back({.ranks = json.at("ranks"),
                        .step_seconds = json.at("step_seconds"),
                        .efficiency = json.at("efficiency"),
                        .exposed_communication_seconds = json.at("exposed_communication_seconds"),
                        .straggler_seconds = json.at("straggler_seconds")});
    } catch (const Json::exception& error) {
      throw ConfigError(
          fmt::format("{}: invalid results of a sweep: {}; expected the file that sim-run wrote", path, error.what()));
    }
  }
  return points;
}

int report_run(const Rehearsal& rehearsal, const SimRequest& request, const sim::SimulationReport& report,
               const std::string& program) {
  rehearsal.write(report);
  const auto prediction = predict(report.times);
  if (request.rehearsal.is_virtual() && !report.error) std::cerr << describe({prediction});
  if (!request.sweep.empty() && prediction.is_known())
    add_sweep_point(request.sweep, scale_point(prediction, /*samples_per_step=*/0));
  if (!request.rehearsal.report.empty()) {
    auto page = rehearsal.page(report);
    if (!request.sweep.empty()) page.scaling = read_sweep_points(request.sweep);
    page.title = fmt::format("a program on {} simulated ranks", request.ranks);
    write_page(page, request.rehearsal.report);
  }
  return conclude(report, program);
}

}  // namespace accel::programs
