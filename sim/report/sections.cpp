#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/report/charts.hpp"
#include "sim/report/html.hpp"
#include "sim/report/loss_curve.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/section.hpp"
#include "sim/report/step_bars.hpp"

namespace accel::sim::detail {
namespace {

const std::vector<std::pair<std::string, std::string>> kStepParts = {
    {"compute", "compute"}, {"exposed", "exposed communication"}, {"waiting", "waiting for stragglers"}};

std::string exact(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : number_text(value); }

std::string loss_summary(const std::vector<double>& losses) {
  const auto width = mean_width(losses.size());
  std::string words = width > 1 ? fmt::format("Rank 0, each step thin, the mean of {} steps bold.", width) : "Rank 0, each step.";
  std::size_t num_missing = 0;
  const auto gaps = ranges_of(losses, /*drawable=*/false);
  for (const auto& [first, last] : gaps) num_missing += last - first;
  if (num_missing > 0) words += fmt::format(" {} of {} losses are not finite, the first at step {}.", num_missing, losses.size(), gaps.front().first);
  return words;
}

// At most 200 rows: of many steps some together.
HtmlTable loss_table(const std::vector<double>& losses) {
  const auto size = (losses.size() + 199) / 200;
  if (size == 1) {
    HtmlTable table{.columns = {"step", "loss"}};
    for (std::size_t step = 0; step < losses.size(); ++step) table.rows.push_back({fmt::format("{}", step), exact(losses[step])});
    return table;
  }
  HtmlTable table{.columns = {"steps", "first", "last", "lowest", "highest", "not finite"}};
  for (std::size_t first = 0; first < losses.size(); first += size) {
    const std::vector<double> some(losses.begin() + static_cast<std::ptrdiff_t>(first), losses.begin() + static_cast<std::ptrdiff_t>(std::min(first + size, losses.size())));
    std::vector<double> finite;
    std::copy_if(some.begin(), some.end(), std::back_inserter(finite), is_drawable);
    std::sort(finite.begin(), finite.end());
    table.rows.push_back({fmt::format("{}-{}", first, first + some.size() - 1), exact(some.front()), exact(some.back()), finite.empty() ? "" : exact(finite.front()),
                          finite.empty() ? "" : exact(finite.back()), fmt::format("{}", some.size() - finite.size())});
  }
  return table;
}

std::string step_summary(const std::vector<StepBreakdown>& ranks) {
  const auto mean = mean_of(ranks);
  const auto share = [&](double part) { return percent_text(total(mean) == 0 ? 0 : part / total(mean)); };
  auto words = fmt::format("The mean step takes {}: {} compute, {} exposed communication, {} waiting for stragglers.", seconds_text(total(mean)), share(mean.compute),
                           share(mean.exposed_communication), share(mean.straggler_wait));
  std::vector<std::pair<double, std::size_t>> computes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) computes.emplace_back(ranks[rank].compute, rank);
  std::sort(computes.begin(), computes.end());
  const auto [longest, slowest] = computes.back();
  const auto median = computes[computes.size() / 2].first;
  if (median > 0 && longest > 1.05 * median) {
    words += fmt::format(" Rank {} computes longest: {}, {:.2f} times the median.", slowest, seconds_text(longest), longest / median);
  }
  return words;
}

HtmlTable step_table(const std::vector<StepBreakdown>& ranks) {
  HtmlTable table{.columns = {"rank", "compute", "exposed communication", "waiting for stragglers", "step"}};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& step = ranks[rank];
    table.rows.push_back({fmt::format("{}", rank), seconds_text(step.compute), seconds_text(step.exposed_communication), seconds_text(step.straggler_wait), seconds_text(total(step))});
  }
  return table;
}

HtmlTable volume_table(const std::vector<CommunicationVolume>& volumes) {
  HtmlTable table{.columns = {"operation", "calls", "bytes", "time"}};
  for (const auto& volume : volumes) table.rows.push_back({volume.op, count_text(volume.calls), count_text(volume.bytes), seconds_text(volume.seconds)});
  return table;
}

HtmlTable scaling_table(const std::vector<ScalePoint>& scaling) {
  HtmlTable table{.columns = {"ranks", "step", "efficiency", "exposed communication", "waiting for stragglers", "samples/s"}};
  for (const auto& point : scaling) {
    table.rows.push_back({count_text(point.ranks), seconds_text(point.step_seconds), percent_text(point.efficiency), seconds_text(point.exposed_communication_seconds),
                          seconds_text(point.straggler_seconds), number_text(point.samples_per_second)});
  }
  return table;
}

}  // namespace

std::string diagnosis_section(const RunReport& report) {
  if (report.diagnosis.empty()) return empty_section("diagnosis", "Diagnosis", "None: the run met no hang, no desync and no failure.");
  return section("diagnosis", "Diagnosis", fmt::format("<pre tabindex=\"0\">{}</pre>\n", escape(report.diagnosis)));
}

std::string findings_section(const RunReport& report) {
  return report.findings.empty() ? empty_section("findings", "Findings", "None.") : section("findings", "Findings", bullets(report.findings));
}

std::string faults_section(const RunReport& report) {
  return report.faults.empty() ? empty_section("faults", "Faults", "None were injected.") : section("faults", "Faults", bullets(report.faults));
}

std::string loss_section(const RunReport& report) {
  if (report.losses.empty()) return empty_section("loss", "Loss", "The run recorded no loss.");
  const auto picture = chart("loss", [&](const Canvas& canvas) { return loss_chart(report.losses, canvas); });
  return section("loss", "Loss", paragraph(loss_summary(report.losses)) + picture + folded_table("Losses as a table", loss_table(report.losses)));
}

std::string step_section(const RunReport& report) {
  if (report.ranks.empty()) return empty_section("step-time", "Where a step's time goes", "The run measured no step times.");
  const auto picture = chart("step-time", [&](const Canvas& canvas) {
    auto entries = kStepParts;
    if (report.ranks.size() > most_bars(canvas)) entries.emplace_back("slowest", "compute of the slowest of a bar's ranks");
    return legend(entries) + rank_chart(report.ranks, canvas);
  });
  return section("step-time", "Where a step's time goes",
                 paragraph(step_summary(report.ranks)) + picture + folded_table("Step times as a table, by rank", step_table(report.ranks)));
}

std::string volume_section(const RunReport& report) {
  if (report.volumes.empty()) return empty_section("communication", "Communication", "The ranks sent each other nothing.");
  auto volumes = report.volumes;
  std::stable_sort(volumes.begin(), volumes.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::int64_t bytes = 0, calls = 0;
  for (const auto& volume : volumes) bytes += volume.bytes, calls += volume.calls;
  const auto picture = chart("communication", [&](const Canvas& canvas) { return volume_chart(volumes, canvas); });
  return section("communication", "Communication",
                 paragraph(fmt::format("All ranks together: {} in {}.", bytes_text(static_cast<double>(bytes)), plural(calls, "call"))) + picture +
                     folded_table("Communication as a table", volume_table(volumes)));
}

std::string scaling_section(const RunReport& report) {
  if (report.scaling.empty()) return empty_section("scaling", "Scaling", "The program ran on one number of ranks only.");
  auto scaling = report.scaling;
  std::stable_sort(scaling.begin(), scaling.end(), [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
  const auto& last = scaling.back();
  const auto words = fmt::format("On {} a step takes {}, {} of the ideal throughput.", plural(last.ranks, "rank"), seconds_text(last.step_seconds), percent_text(last.efficiency));
  const auto curve = chart("efficiency", [&](const Canvas& canvas) { return efficiency_chart(scaling, canvas); });
  const auto bars = chart("scaled-step", [&](const Canvas& canvas) { return scaled_step_chart(scaling, canvas); });
  return section("scaling", "Scaling", paragraph(words) + legend({{"efficiency", "measured efficiency"}, {"ideal", "ideal"}}) + curve + legend(kStepParts) + bars +
                                           folded_table("Scaling as a table", scaling_table(scaling)));
}

}  // namespace accel::sim::detail
