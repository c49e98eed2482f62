#include "reference/pipeline/schedules/schedule_csv.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <istream>
#include <ostream>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::pipeline {
namespace {

// The cells of a line. No cell contains a comma, so quotes are those of a program that quotes everything.
std::vector<std::string> cells_of_line(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char character : line) {
    if (character == ',')
      cells.emplace_back();
    else if (character != '"' && character != '\r')
      cells.back() += character;
  }
  return cells;
}

}  // namespace

Schedule read_schedule(std::istream& in, const std::string& name) {
  Schedule schedule{.name = name, .sizes = {.stages = 1, .ranks = 1, .micro_batches = 1}};
  std::vector<std::string> problems;
  bool has_actions = false;
  for (std::string line; std::getline(in, line);) {
    auto& actions = schedule.actions.emplace_back();
    for (const auto& cell : cells_of_line(line)) {
      try {
        const auto parsed = parse_cell(cell);
        actions.insert(actions.end(), parsed.begin(), parsed.end());
      } catch (const ArgumentError& error) {
        problems.push_back(fmt::format("line {}: {}", schedule.actions.size(), error.what()));
      }
    }
    for (const auto& action : actions) {
      has_actions = true;
      schedule.sizes.stages = std::max(schedule.sizes.stages, action.stage + 1);
      schedule.sizes.micro_batches = std::max(schedule.sizes.micro_batches, action.micro_batch + 1);
    }
  }
  while (!schedule.actions.empty() && schedule.actions.back().empty()) schedule.actions.pop_back();
  schedule.sizes.ranks = std::max(1, static_cast<int>(schedule.actions.size()));
  if (problems.empty() && !has_actions) problems.emplace_back("it contains no action");
  check_sizes(schedule.sizes, problems);
  if (!problems.empty()) throw ConfigError(fmt::format("{}: {}", name, listed(problems, "\n")));
  return schedule;
}

void write_schedule(std::ostream& out, const Schedule& schedule) {
  for (const auto& actions : schedule.actions) out << fmt::format("{}\n", fmt::join(cells_of(actions), ","));
}

}  // namespace accel::pipeline
