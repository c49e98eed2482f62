// The page of a verification. It consists of the sections and the style of the page of a run (report_page.cpp).
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/verification_sections.hpp"

namespace accel::sim {
namespace {

class BadNumbers {
 public:
  // The negated form also catches NaN.
  template <typename T>
  void expect_amount(T value, const std::string& name) {
    if (!(value >= 0 && static_cast<double>(value) < 1e300))
      text_ += fmt::format("\n  {}: expected a finite number of 0 or more, got {}", name, value);
  }
  void raise() const { check_argument(text_.empty(), "report: these numbers cannot be shown; correct them:{}", text_); }

 private:
  std::string text_;
};

void check_numbers(const VerificationReport& report) {
  BadNumbers bad;
  for (const auto& one : report.comparisons) {
    const auto name = fmt::format("{}, {} and {}", one.law, one.left, one.right);
    bad.expect_amount(one.cases, name + ": cases");
    bad.expect_amount(one.differences, name + ": differences");
    for (const auto& cell : one.cells) {
      bad.expect_amount(cell.cases, fmt::format("{}: {} {}", name, cell.dimension, cell.value));
      bad.expect_amount(cell.ranks - 1, fmt::format("{}: {} {}: ranks - 1", name, cell.dimension, cell.value));
    }
  }
  for (const auto& one : report.generators) {
    bad.expect_amount(one.cases, one.generator + ": cases");
    for (const auto& feature : one.features) {
      for (const auto& [value, cases] : feature.values)
        bad.expect_amount(cases, fmt::format("{}: {} {}", one.generator, feature.name, value));
    }
  }
  for (const auto& one : report.benchmarks) {
    bad.expect_amount(one.median, one.name + ": median");
    bad.expect_amount(one.ratio.value_or(0), one.name + ": ratio");
  }
  bad.raise();
}

std::string verification_verdict(const VerificationReport& report) {
  std::int64_t differences = 0;
  for (const auto& one : report.comparisons) differences += one.differences;
  std::string bad;
  if (differences > 0) bad += ", " + report::plural(differences, "difference") + " between backends";
  // A program that ran out of time leaves comparisons out, so that the others alone prove little.
  if (!report.failed_tests.empty()) bad += fmt::format(", failed tests: {}", fmt::join(report.failed_tests, ", "));
  if (!bad.empty()) return fmt::format("<p class=\"verdict bad\">✕ {}</p>\n", report::escape(bad.substr(2)));
  if (report.comparisons.empty()) return "<p class=\"verdict warn\">! no comparison of backends was run</p>\n";
  return "<p class=\"verdict good\">✓ no difference between backends</p>\n";
}

// The headline numbers, which a reader looks for first.
std::string verification_figures(const VerificationReport& report) {
  std::string html;
  const auto add = [&](const std::string& value, const std::string& name) {
    html += fmt::format("<li><b>{}</b>{}</li>\n", report::escape(value), report::escape(name));
  };
  std::int64_t cases = 0, runs = 0;
  for (const auto& one : report.comparisons) cases += one.cases;
  for (const auto& one : report.faults) runs += one.passed + one.failed;
  if (cases > 0) add(report::count_text(cases), "cases compared between backends");
  const auto was_run = [](const MutantResult& one) { return !one.result.empty(); };
  if (std::any_of(report.mutants.begin(), report.mutants.end(), was_run))
    add(report::percent_text(report::mutation_score(report.mutants)), "of the mutants that were run are killed");
  if (runs > 0) add(report::count_text(runs), "test runs under faults");
  if (!report.differences.empty())
    add(report::count_text(static_cast<std::int64_t>(report.differences.size())), "differences from Accelerate");
  return html.empty() ? "" : fmt::format("<ul class=\"figures\">\n{}</ul>\n", html);
}

}  // namespace

std::string verification_page(const VerificationReport& report) {
  check_numbers(report);
  std::string sections;
  for (const auto part : {report::equivalence_section, report::generators_section, report::mutants_section,
                          report::benchmarks_section, report::fault_runs_section, report::differences_section})
    sections += part(report);
  return report::whole_page(
      report.title, verification_verdict(report) + report::fact_list(report.facts) + verification_figures(report),
      sections);
}

}  // namespace accel::sim
