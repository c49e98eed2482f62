// The sections with times: the parts of a step by rank, and scaling over numbers of ranks.
#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/step_bars.hpp"

namespace accel::sim::report {
namespace {

// Style and name of each part, shared by both charts, so that a colour means the same on the complete page.
std::vector<std::pair<std::string, std::string>> step_parts() {
  return {{"compute", "compute"}, {"exposed", "exposed communication"}, {"waiting", "waiting for stragglers"}};
}

// Compares the slowest rank with the median, not the mean: with few ranks one straggler would raise the mean itself.
std::string step_summary(const std::vector<StepBreakdown>& ranks) {
  const auto mean = mean_of(ranks);
  const auto share = [&](double part) { return percent_text(total(mean) == 0 ? 0 : part / total(mean)); };
  auto words = fmt::format("The mean step takes {}: {} compute, {} exposed communication, {} waiting for stragglers.",
                           seconds_text(total(mean)), share(mean.compute), share(mean.exposed_communication),
                           share(mean.straggler_wait));
  std::vector<std::pair<double, std::size_t>> computes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) computes.emplace_back(ranks[rank].compute, rank);
  std::sort(computes.begin(), computes.end());
  const auto [longest, slowest] = computes.back();
  const auto median = computes[computes.size() / 2].first;
  // Named only if it stands out: in every run some rank is the slowest by a little.
  if (median > 0 && longest > 1.05 * median) {
    words += fmt::format(" Rank {} computes longest: {}, {:.2f} times the median.", slowest, seconds_text(longest),
                         longest / median);
  }
  return words;
}

HtmlTable step_table(const std::vector<StepBreakdown>& ranks) {
  HtmlTable table{.columns = {"rank", "compute", "exposed communication", "waiting for stragglers", "step"}};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& step = ranks[rank];
    table.rows.push_back({fmt::format("{}", rank), seconds_text(step.compute), seconds_text(step.exposed_communication),
                          seconds_text(step.straggler_wait), seconds_text(total(step))});
  }
  return table;
}

HtmlTable scaling_table(const std::vector<ScalePoint>& scaling) {
  HtmlTable table{
      .columns = {"ranks", "step", "efficiency", "exposed communication", "waiting for stragglers", "samples/s"}};
  for (const auto& point : scaling) {
    table.rows.push_back({count_text(point.ranks), seconds_text(point.step_seconds), percent_text(point.efficiency),
                          seconds_text(point.exposed_communication_seconds), seconds_text(point.straggler_seconds),
                          point.samples_per_second > 0 ? number_text(point.samples_per_second) : "unknown"});
  }
  return table;
}

}  // namespace

std::string step_section(const RunReport& report) {
  if (report.ranks.empty())
    return empty_section("step-time", "Where a step's time goes", "No step times were measured.");
  const auto picture = chart("step-time", [&](const Canvas& canvas) {
    auto entries = step_parts();
    // Explained only where bars are shared; the narrow chart shares bars earlier than the wide one.
    if (report.ranks.size() > max_bars(canvas))
      entries.emplace_back("slowest", "compute of the slowest rank in the bar");
    return legend(entries) + rank_chart(report.ranks, canvas);
  });
  return section("step-time", "Where a step's time goes",
                 paragraph(step_summary(report.ranks)) + picture +
                     folded_table("Step times as a table, by rank", step_table(report.ranks)));
}

std::string scaling_section(const RunReport& report) {
  if (report.scaling.empty()) return empty_section("scaling", "Scaling", "No sweep over numbers of ranks was made.");
  // Sorted here, because a sweep may be given in any order (`--ranks 8,2,4`).
  auto scaling = report.scaling;
  std::stable_sort(scaling.begin(), scaling.end(), [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
  const auto& last = scaling.back();
  const auto words = fmt::format("On {} a step takes {}, {} of the ideal throughput.", plural(last.ranks, "rank"),
                                 seconds_text(last.step_seconds), percent_text(last.efficiency));
  const auto curve = chart("efficiency", [&](const Canvas& canvas) { return efficiency_chart(scaling, canvas); });
  const auto bars = chart("scaled-step", [&](const Canvas& canvas) { return scaled_step_chart(scaling, canvas); });
  return section("scaling", "Scaling",
                 paragraph(words) + legend({{"efficiency", "measured efficiency"}, {"ideal", "ideal"}}) + curve +
                     legend(step_parts()) + bars + folded_table("Scaling as a table", scaling_table(scaling)));
}

}  // namespace accel::sim::report
