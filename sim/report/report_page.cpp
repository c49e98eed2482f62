// Assembles the page. The numbers are checked before anything is drawn, so that one error lists all of them
// instead of a chart failing on the first.
#include <fmt/format.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/step_bars.hpp"

namespace accel::sim {
namespace {

using report::escape;

class Problems {
 public:
  // The upper bound excludes infinity and values that would overflow an axis; the negated form also catches NaN.
  void expect_amount(double value, const std::string& name) {
    if (!(value >= 0 && value < 1e300))
      text_ += fmt::format("\n  {}: expected a finite number of 0 or more, got {}", name, value);
  }
  void expect_ranks(int ranks, const std::string& name) {
    if (ranks < 1) text_ += fmt::format("\n  {}: expected 1 or more ranks, got {}", name, ranks);
  }
  void raise() const { check_argument(text_.empty(), "report: these numbers cannot be drawn; correct them:{}", text_); }

 private:
  std::string text_;
};

void check(const RunReport& report) {
  Problems problems;
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

// A symbol next to the colour: readers who cannot tell the colours apart see the result as well.
std::string verdict(const RunReport& report) {
  if (!report.diagnosis.empty()) return "<p class=\"verdict bad\">✕ failed: see the diagnosis</p>\n";
  if (report.findings.empty()) return "<p class=\"verdict good\">✓ completed</p>\n";
  return fmt::format("<p class=\"verdict warn\">! completed with {}</p>\n",
                     report::plural(static_cast<std::int64_t>(report.findings.size()), "finding"));
}

std::string facts(const RunReport& report) {
  auto all = report.facts;
  if (!report.timeline_file.empty())
    all.emplace_back("timeline, for ui.perfetto.dev or chrome://tracing", report.timeline_file);
  return report::fact_list(all);
}

// The headline numbers, which a reader looks for first.
std::string figures(const RunReport& report) {
  std::string html;
  const auto add = [&](const std::string& value, const std::string& name) {
    html += fmt::format("<li><b>{}</b>{}</li>\n", escape(value), escape(name));
  };
  if (!report.losses.empty()) add(report::number_text(report.losses.back()), "loss of the last step");
  const auto mean = report::mean_of(report.ranks);
  // Shares of an empty step would be NaN.
  if (const auto step = report::total(mean); step > 0) {
    add(report::seconds_text(step), "mean step");
    add(report::percent_text(mean.exposed_communication / step), "exposed communication");
    add(report::percent_text(mean.straggler_wait / step), "waiting for stragglers");
  }
  return html.empty() ? "" : fmt::format("<ul class=\"figures\">\n{}</ul>\n", html);
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
