// Assembles the page. The numbers are checked before anything is drawn.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/number_problems.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/step_bars.hpp"
#include "sim/report/timeline/timeline.hpp"

namespace accel::sim {
namespace {

void check(const RunReport& report) {
  report::NumberProblems problems;
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto& step = report.ranks[rank];
    problems.expect_amount(step.compute, fmt::format("ranks[{}].compute", rank));
    problems.expect_amount(step.exposed_communication, fmt::format("ranks[{}].exposed_communication", rank));
    problems.expect_amount(step.straggler_wait, fmt::format("ranks[{}].straggler_wait", rank));
  }
  for (const auto& volume : report.volumes) {
    problems.expect_amount(static_cast<double>(volume.calls), fmt::format("volumes, {}: calls", volume.op));
    problems.expect_amount(static_cast<double>(volume.bytes), fmt::format("volumes, {}: bytes", volume.op));
    problems.expect_amount(volume.seconds, fmt::format("volumes, {}: seconds", volume.op));
  }
  for (const auto& [kind, bytes] : report.memory)
    problems.expect_amount(static_cast<double>(bytes), fmt::format("memory, {}", kind));
  for (std::size_t index = 0; index < report.scaling.size(); ++index) {
    const auto& point = report.scaling[index];
    const auto name = fmt::format("scaling[{}].", index);
    problems.expect_ranks(point.ranks, name + "ranks");
    problems.expect_amount(point.step_seconds, name + "step_seconds");
    problems.expect_amount(point.efficiency, name + "efficiency");
    problems.expect_amount(point.exposed_communication_seconds, name + "exposed_communication_seconds");
    problems.expect_amount(point.straggler_seconds, name + "straggler_seconds");
    problems.expect_amount(point.samples_per_second, name + "samples_per_second");
  }
  problems.raise();
}

std::string verdict(const RunReport& report) {
  using enum report::Verdict;
  if (!report.diagnosis.empty()) return report::verdict_line(kBad, "failed: see the diagnosis");
  if (report.findings.empty()) return report::verdict_line(kGood, "completed");
  const auto findings = report::plural(static_cast<std::int64_t>(report.findings.size()), "finding");
  return report::verdict_line(kWarning, "completed with " + findings);
}

std::string facts(const RunReport& report) {
  auto all = report.facts;
  if (!report.timeline_file.empty())
    all.emplace_back(timeline_format_of(report.timeline_file) == TimelineFormat::kJson
                         ? "timeline, for ui.perfetto.dev or chrome://tracing"
                         : "timeline, for ui.perfetto.dev",
                     report.timeline_file);
  return report::fact_list(all);
}

std::string figures(const RunReport& report) {
  std::vector<std::pair<std::string, std::string>> figures;
  if (!report.losses.empty()) figures.emplace_back(report::number_text(report.losses.back()), "loss of the last step");
  const auto mean = report::mean_of(report.ranks);
  // Shares of an empty step would be NaN.
  if (const auto step = report::total(mean); step > 0) {
    figures.emplace_back(report::seconds_text(step), "mean step");
    figures.emplace_back(report::percent_text(mean.exposed_communication / step), "exposed communication");
    figures.emplace_back(report::percent_text(mean.straggler_wait / step), "waiting for stragglers");
  }
  return report::figure_list(figures);
}

}  // namespace

std::string report_page(const RunReport& report) {
  check(report);
  std::string sections;
  // The order of importance: why it stopped, what was found, then the measurements.
  for (const auto part :
       {report::diagnosis_section, report::findings_section, report::faults_section, report::loss_section,
        report::step_section, report::volume_section, report::memory_section, report::scaling_section}) {
    sections += part(report);
  }
  return report::whole_page(report.title, verdict(report) + facts(report) + figures(report), sections);
}

}  // namespace accel::sim
