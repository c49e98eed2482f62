// The sections that are tables only: mutants, benchmarks, faults, differences from Accelerate.
#include "sim/report/verification_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"

namespace accel::sim::report {
namespace {

template <typename Range>
std::int64_t size_of(const Range& range) {
  return static_cast<std::int64_t>(range.size());
}

// --- mutants ---

constexpr const char* kKilledByAssertion = "assertion";

bool was_run(const MutantResult& one) { return !one.result.empty(); }

HtmlTable mutants_by_area(const std::vector<MutantResult>& mutants) {
  std::set<std::string> results;
  std::map<std::string, std::vector<MutantResult>> areas;
  for (const auto& one : mutants) {
    areas[one.area].push_back(one);
    if (was_run(one)) results.insert(one.result);
  }
  HtmlTable table{.columns = {"area", "mutants", "score", "not run"}};
  table.columns.insert(table.columns.end(), results.begin(), results.end());
  const auto add = [&](const std::string& area, const std::vector<MutantResult>& of_area) {
    const auto count = [&](const std::string& result) {
      return std::count_if(of_area.begin(), of_area.end(), [&](const auto& one) { return one.result == result; });
    };
    const bool was_none_run = count("") == size_of(of_area);
    table.rows.push_back({area, count_text(size_of(of_area)),
                          was_none_run ? "–" : percent_text(mutation_score(of_area)), count_text(count(""))});
    for (const auto& result : results) table.rows.back().push_back(count_text(count(result)));
  };
  for (const auto& [area, of_area] : areas) add(area, of_area);
  add("all", mutants);
  return table;
}

HtmlTable mutants_that_were_run(const std::vector<MutantResult>& mutants) {
  HtmlTable table{.columns = {"mutant", "fault", "result", "test or reason", "commit", "date"}};
  for (const auto& one : mutants) {
    if (was_run(one))
      table.rows.push_back({one.area + "/" + one.name, one.what, one.result,
                            one.survives.empty() ? one.test : one.survives, one.commit, one.date});
  }
  return table;
}

// --- benchmarks ---

std::string measured(double value, const std::string& unit) {
  if (unit == "s") return seconds_text(value);
  if (unit == "bytes" || unit == "B") return bytes_text(value);
  return number_text(value) + (unit.empty() ? "" : " " + unit);
}

std::string ratio_text(const BenchmarkResult& one) {
  return one.ratio ? fmt::format("{} times {}", number_text(*one.ratio), one.beside) : "";
}

// The measurements of each benchmark, the newest first.
std::map<std::string, std::vector<BenchmarkResult>> by_name(const std::vector<BenchmarkResult>& benchmarks) {
  std::map<std::string, std::vector<BenchmarkResult>> measurements;
  for (const auto& one : benchmarks) measurements[one.name].push_back(one);
  for (auto& [name, of_name] : measurements) {
    std::stable_sort(of_name.begin(), of_name.end(),
                     [](const auto& a, const auto& b) { return a.origin.date > b.origin.date; });
  }
  return measurements;
}

std::string history_text(std::int64_t num_earlier, int num_unread) {
  auto text = num_earlier == 0 ? std::string("No earlier measurements are stored.")
                               : fmt::format("{} stored.", plural(num_earlier, "earlier measurement"));
  if (num_unread > 0) text += fmt::format(" {} in a format without rows.", plural(num_unread, "earlier file"));
  return text;
}

}  // namespace

std::string origin_line(const ResultOrigin& origin) {
  auto text = "Command: " + (origin.command.empty() ? "unknown" : origin.command);
  if (!origin.commit.empty()) text += "; commit " + origin.commit;
  if (!origin.date.empty()) text += "; " + origin.date;
  return paragraph(text + ".");
}

std::int64_t num_run(const std::vector<MutantResult>& mutants) {
  return std::count_if(mutants.begin(), mutants.end(), was_run);
}

double mutation_score(const std::vector<MutantResult>& mutants) {
  const auto run = num_run(mutants);
  const auto num_killed =
      std::count_if(mutants.begin(), mutants.end(), [](const auto& one) { return one.result == kKilledByAssertion; });
  return run == 0 ? 0 : static_cast<double>(num_killed) / static_cast<double>(run);
}

std::string mutants_section(const VerificationReport& report) {
  const auto run = num_run(report.mutants);
  if (run == 0) return empty_section("mutants", "Mutants", "No mutant was run. ./dev mutants builds and tests them.");
  return section("mutants", "Mutants",
                 paragraph(fmt::format("The library with one planted fault each: {}, of which {} were run. Assertions "
                                       "killed {} of these. Command: ./dev mutants.",
                                       plural(size_of(report.mutants), "mutant"), count_text(run),
                                       percent_text(mutation_score(report.mutants)))) +
                     open_table(mutants_by_area(report.mutants)) +
                     folded_table("The mutants that were run", mutants_that_were_run(report.mutants)));
}

std::string benchmarks_section(const VerificationReport& report) {
  const auto measurements = by_name(report.benchmarks);
  if (measurements.empty())
    return empty_section("benchmarks", "Benchmarks",
                         "No measurements. ./dev bench writes them to reports/results. " +
                             history_text(0, report.unread_benchmark_files));
  HtmlTable newest{.columns = {"benchmark", "median", "ratio", "date", "commit", "machine", "command"}};
  HtmlTable earlier{.columns = {"benchmark", "date", "commit", "machine", "median", "ratio"}};
  for (const auto& [name, of_name] : measurements) {
    const auto& first = of_name.front();
    newest.rows.push_back({name, measured(first.median, first.unit), ratio_text(first), first.origin.date,
                           first.origin.commit, first.machine, first.origin.command});
    for (auto one = of_name.begin() + 1; one != of_name.end(); ++one)
      earlier.rows.push_back({name, one->origin.date, one->origin.commit, one->machine,
                              measured(one->median, one->unit), ratio_text(*one)});
  }
  auto body = paragraph(plural(size_of(measurements), "benchmark") + ". " +
                        history_text(size_of(earlier.rows), report.unread_benchmark_files)) +
              open_table(newest);
  if (!earlier.rows.empty()) body += folded_table("Earlier measurements", earlier);
  return section("benchmarks", "Benchmarks", body);
}

std::string fault_runs_section(const VerificationReport& report) {
  if (report.faults.empty())
    return empty_section("faults", "Faults survived", "No test under faults was run. ./dev test fault runs them.");
  HtmlTable table{.columns = {"fault", "test", "passed", "failed"}};
  int passed = 0, failed = 0;
  for (const auto& one : report.faults) {
    table.rows.push_back({one.fault, one.test, count_text(one.passed), count_text(one.failed)});
    passed += one.passed, failed += one.failed;
  }
  return section("faults", "Faults survived",
                 paragraph(fmt::format("Runs under injected faults that ended as the test requires: {} of {}.",
                                       count_text(passed), count_text(passed + failed))) +
                     origin_line(report.tests) + open_table(table));
}

std::string differences_section(const VerificationReport& report) {
  if (report.differences.empty())
    return empty_section("differences", "Differences from Accelerate", "None are listed in reports/differences.md.");
  // In the order of the list, which is that of the guide.
  std::vector<std::string> areas;
  std::map<std::string, HtmlTable> tables;
  int tests = 0, passed = 0, failed = 0;
  for (const auto& one : report.differences) {
    if (!tables.contains(one.area)) {
      areas.push_back(one.area);
      tables[one.area] = {.columns = {"subject", "Accelerate", "accel", "threads", "tests that passed"}, .wraps = true};
    }
    auto result = fmt::format("{} of {}", one.passed, one.tests);
    if (one.failed > 0) result += fmt::format(", {} failed", one.failed);
    tables[one.area].rows.push_back({one.subject, one.theirs, one.ours, one.threads, result});
    tests += one.tests, passed += one.passed, failed += one.failed;
  }
  std::string folded;
  for (const auto& area : areas)
    folded += folded_table(fmt::format("{}: {}", area, plural(size_of(tables[area].rows), "difference")), tables[area]);
  return section("differences", "Differences from Accelerate",
                 paragraph(fmt::format("{} in {}. Of the {} that hold them, this run of the tests passed {}, failed {} "
                                       "and left out {}. The list is reports/differences.md.",
                                       plural(size_of(report.differences), "known difference"),
                                       plural(size_of(areas), "area"), plural(tests, "test"), count_text(passed),
                                       count_text(failed), count_text(tests - passed - failed))) +
                     origin_line(report.tests) + folded);
}

}  // namespace accel::sim::report
