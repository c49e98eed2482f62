#include "sim/programs/sim_run/layouts_page.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "sim/programs/layouts/layout_proof.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using sim::report::bytes_text, sim::report::count_text, sim::report::seconds_text;

constexpr const char* kExplanation =
    "Every layout computes the same samples per step. * marks layouts that no other layout beats in both step time and "
    "memory per rank.";

// Layout, step, compute, exposed communication, memory.
std::vector<std::string> cells_of(const LayoutRanking& ranking, std::size_t index) {
  const auto& forecast = ranking.layouts[index];
  return {(ranking.is_best(index) ? "* " : "  ") + name_of(forecast.layout), seconds_text(forecast.costs.step_seconds),
          seconds_text(forecast.costs.compute_seconds),
          seconds_text(std::max(0.0, forecast.costs.step_seconds - forecast.costs.compute_seconds)),
          bytes_text(static_cast<double>(forecast.costs.memory_bytes))};
}

const std::vector<std::string> kColumns{"layout", "step", "compute", "exposed communication", "memory per rank"};

std::string line_of(const std::vector<std::string>& cells) {
  return fmt::format("{:<48} {:>10} {:>10} {:>22} {:>16}\n", cells[0], cells[1], cells[2], cells[3], cells[4]);
}

std::string count_line(const LayoutRanking& ranking) {
  return fmt::format("{} fit, {} do not fit",
                     sim::report::plural(static_cast<std::int64_t>(ranking.layouts.size()), "layout"),
                     ranking.num_unfit());
}

}  // namespace

std::size_t LayoutRanking::num_unfit() const {
  std::size_t count = 0;
  for (const auto& [reason, layouts] : problems) count += layouts.size();
  return count;
}

bool LayoutRanking::is_best(std::size_t layout) const {
  const auto costs = [](const LayoutForecast& forecast) {
    return std::pair(forecast.costs.step_seconds, forecast.costs.memory_bytes);
  };
  const auto own = costs(layouts[layout]);
  return std::none_of(layouts.begin(), layouts.end(), [&](const auto& other) {
    const auto its = costs(other);
    return its != own && its.first <= own.first && its.second <= own.second;
  });
}

LayoutRanking rank_layouts(std::vector<LayoutForecast> forecasts) {
  LayoutRanking ranking;
  for (auto& forecast : forecasts) {
    if (forecast.problem.empty())
      ranking.layouts.push_back(std::move(forecast));
    else
      ranking.problems[forecast.problem].push_back(name_of(forecast.layout));
  }
  std::sort(ranking.layouts.begin(), ranking.layouts.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.costs.step_seconds, a.costs.memory_bytes, name_of(a.layout)) <
           std::tuple(b.costs.step_seconds, b.costs.memory_bytes, name_of(b.layout));
  });
  return ranking;
}

std::string layouts_text(const LayoutRanking& ranking) {
  auto head = kColumns;
  head[0] = "  " + head[0];
  auto text = ranking.layouts.empty() ? "" : line_of(head);
  for (std::size_t index = 0; index < ranking.layouts.size(); ++index) text += line_of(cells_of(ranking, index));
  text += fmt::format("{}\n{}\n", kExplanation, count_line(ranking));
  for (const auto& [reason, layouts] : ranking.problems)
    text += fmt::format("{:>6}  {}\n", layouts.size(), reason.substr(0, reason.find('\n')));
  if (!ranking.layouts.empty()) text += fmt::format("To run the first: {}\n", ranking.layouts.front().command);
  return text;
}

std::string layouts_json(const LayoutRanking& ranking) {
  Json json{{"layouts", Json::array()}, {"problems", Json::array()}};
  json["command"] = ranking.layouts.empty() ? "" : ranking.layouts.front().command;
  for (std::size_t index = 0; index < ranking.layouts.size(); ++index) {
    const auto& forecast = ranking.layouts[index];
    auto memory = Json::object();
    for (const auto& [kind, bytes] : forecast.memory) memory[kind] = bytes;
    json["layouts"].push_back({{"layout", name_of(forecast.layout)},
                               {"step_seconds", forecast.costs.step_seconds},
                               {"compute_seconds", forecast.costs.compute_seconds},
                               {"memory_bytes", forecast.costs.memory_bytes},
                               {"memory", memory},
                               {"best", ranking.is_best(index)},
                               {"command", forecast.command}});
  }
  for (const auto& [reason, layouts] : ranking.problems)
    json["problems"].push_back({{"reason", reason}, {"layouts", layouts}});
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string layouts_page(const LayoutRanking& ranking) {
  namespace report = sim::report;
  report::HtmlTable table{.columns = kColumns}, unfit{.columns = {"reason", "layouts"}, .wraps = true};
  for (std::size_t index = 0; index < ranking.layouts.size(); ++index) table.rows.push_back(cells_of(ranking, index));
  for (const auto& [reason, layouts] : ranking.problems)
    unfit.rows.push_back({reason, fmt::format("{}: {}", layouts.size(), fmt::join(layouts, ", "))});
  const auto verdict = ranking.layouts.empty() ? report::Verdict::kBad : report::Verdict::kGood;
  return report::whole_page(
      "Layouts by predicted step time",
      report::verdict_line(verdict, count_line(ranking)) + report::fact_list(ranking.facts),
      (ranking.layouts.empty()
           ? report::empty_section("layouts", "Layouts", "No layout fits.")
           : report::section("layouts", "Layouts", report::paragraph(kExplanation) + report::open_table(table))) +
          (ranking.problems.empty()
               ? report::empty_section("problems", "Layouts that do not fit", "None.")
               : report::section("problems", "Layouts that do not fit", report::open_table(unfit))));
}

}  // namespace accel::programs
