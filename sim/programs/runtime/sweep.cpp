#include "sim/programs/runtime/sweep.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void add_sweep_point(const std::string& path, const sim::ScalePoint& point) {
  const Json json{{"ranks", point.ranks},
                  {"step_seconds", point.step_seconds},
                  {"efficiency", point.efficiency},
                  {"exposed_communication_seconds", point.exposed_communication_seconds},
                  {"straggler_seconds", point.straggler_seconds}};
  std::ofstream out(path, std::ios::app);
  out << json.dump() << std::endl;
  check_config(out.good(), "{}: the sweep's points cannot be written", path);
}

std::vector<sim::ScalePoint> read_sweep(const std::string& path) {
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
      throw ConfigError(fmt::format("{}: no points of a sweep: {}", path, error.what()));
    }
  }
  return points;
}

}  // namespace accel::programs
