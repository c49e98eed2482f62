// The page of a verification. It consists of the sections and the style of the page of a run (report_page.cpp).
#include <fmt/ranges.h>

#include "sim/report/number_problems.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/verification_sections.hpp"

namespace accel::sim {
namespace {

void check_numbers(const VerificationReport& report) {
  report::NumberProblems bad;
  const auto expect_count = [&](std::int64_t count, const std::string& name) {
    bad.expect_amount(static_cast<double>(count), name);
  };
  for (const auto& one : report.comparisons) {
    const auto name = fmt::format("{}, {} and {}", one.law, one.left, one.right);
    expect_count(one.cases, name + ": cases");
    expect_count(one.differences, name + ": differences");
    for (const auto& cell : one.cells) {
      expect_count(cell.cases, fmt::format("{}: {} {}", name, cell.dimension, cell.value));
      bad.expect_ranks(cell.ranks, fmt::format("{}: {} {}: ranks", name, cell.dimension, cell.value));
    }
  }
  for (const auto& one : report.generators) {
    expect_count(one.cases, one.generator + ": cases");
    for (const auto& feature : one.features) {
      for (const auto& [value, cases] : feature.values)
        expect_count(cases, fmt::format("{}: {} {}", one.generator, feature.name, value));
    }
  }
  for (const auto& one : report.benchmarks) {
    bad.expect_amount(one.median, one.name + ": median");
    bad.expect_amount(one.ratio.value_or(0), one.name + ": ratio");
  }
  bad.raise();
}

std::string verification_verdict(const VerificationReport& report) {
  using enum report::Verdict;
  std::int64_t differences = 0;
  for (const auto& one : report.comparisons) differences += one.differences;
  std::vector<std::string> bad;
  if (differences > 0) bad.push_back(report::plural(differences, "difference") + " between backends");
  // A program that ran out of time leaves comparisons out, so that the others alone prove little.
  if (!report.failed_tests.empty())
    bad.push_back(fmt::format("failed tests: {}", fmt::join(report.failed_tests, ", ")));
  if (!bad.empty()) return report::verdict_line(kBad, fmt::format("{}", fmt::join(bad, ", ")));
  if (report.comparisons.empty()) return report::verdict_line(kWarning, "no comparison of backends was run");
  return report::verdict_line(kGood, "no difference between backends");
}

std::string verification_figures(const VerificationReport& report) {
  std::vector<std::pair<std::string, std::string>> figures;
  std::int64_t cases = 0, runs = 0;
  for (const auto& one : report.comparisons) cases += one.cases;
  for (const auto& one : report.faults) runs += one.passed + one.failed;
  if (cases > 0) figures.emplace_back(report::count_text(cases), "cases compared between backends");
  if (report::num_run(report.mutants) > 0)
    figures.emplace_back(report::percent_text(report::mutation_score(report.mutants)),
                         "of the mutants that were run are killed");
  if (runs > 0) figures.emplace_back(report::count_text(runs), "test runs under faults");
  if (!report.differences.empty())
    figures.emplace_back(report::count_text(static_cast<std::int64_t>(report.differences.size())),
                         "differences from Accelerate");
  return report::figure_list(figures);
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
