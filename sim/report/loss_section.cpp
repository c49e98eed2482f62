#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/report/charts.hpp"
#include "sim/report/loss_curve.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

// Six significant digits: the table is for comparing runs, the chart for reading.
std::string exact(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : number_text(value); }

// Losses that are not finite are counted in words, because a reader may miss a narrow band in the chart.
std::string loss_summary(const std::vector<double>& losses) {
  const auto width = mean_width(losses.size());
  std::string words = width > 1 ? fmt::format("Rank 0: each step (thin) and the mean of {} steps (bold).", width)
                                : "Rank 0, each step.";
  std::size_t num_missing = 0;
  const auto gaps = ranges_of(losses, /*drawable=*/false);
  for (const auto& [first, last] : gaps) num_missing += last - first;
  if (num_missing > 0)
    words += fmt::format(" {} of {} losses are not finite, the first at step {}.", num_missing, losses.size(),
                         gaps.front().first);
  return words;
}

// At most 200 rows: a run with more steps gets a row per range of steps, with its extremes.
HtmlTable loss_table(const std::vector<double>& losses) {
  const auto size = (losses.size() + 199) / 200;
  if (size == 1) {
    HtmlTable table{.columns = {"step", "loss"}};
    for (std::size_t step = 0; step < losses.size(); ++step)
      table.rows.push_back({fmt::format("{}", step), exact(losses[step])});
    return table;
  }
  HtmlTable table{.columns = {"steps", "first", "last", "lowest", "highest", "not finite"}};
  for (std::size_t first = 0; first < losses.size(); first += size) {
    const std::vector<double> some(losses.begin() + static_cast<std::ptrdiff_t>(first),
                                   losses.begin() + static_cast<std::ptrdiff_t>(std::min(first + size, losses.size())));
    std::vector<double> finite;
    std::copy_if(some.begin(), some.end(), std::back_inserter(finite), is_drawable);
    // Of the finite losses only: a NaN has no order and would make the extremes of its rows meaningless.
    std::sort(finite.begin(), finite.end());
    table.rows.push_back({fmt::format("{}-{}", first, first + some.size() - 1), exact(some.front()), exact(some.back()),
                          finite.empty() ? "" : exact(finite.front()), finite.empty() ? "" : exact(finite.back()),
                          fmt::format("{}", some.size() - finite.size())});
  }
  return table;
}

}  // namespace

std::string loss_section(const RunReport& report) {
  if (report.losses.empty()) return empty_section("loss", "Loss", "No loss was recorded.");
  const auto picture = chart("loss", [&](const Canvas& canvas) { return loss_chart(report.losses, canvas); });
  return section(
      "loss", "Loss",
      paragraph(loss_summary(report.losses)) + picture + folded_table("Losses as a table", loss_table(report.losses)));
}

}  // namespace accel::sim::report
