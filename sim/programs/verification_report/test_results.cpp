#include "sim/programs/verification_report/test_results.hpp"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>

namespace accel::programs {
namespace {

// "Kinds/FaultFilesTest.EndsAsDocumented/jitter_on_4" is the test FaultFilesTest.EndsAsDocumented with a parameter, and
// "TypedTest/0.Works" the test TypedTest.Works.
TestResult parse_name(const std::string& full) {
  const auto dot = full.find('.');
  auto suite = full.substr(0, dot);
  const auto test = dot == std::string::npos ? "" : full.substr(dot + 1);
  if (const auto slash = suite.rfind('/'); slash != std::string::npos) {
    const auto last = suite.substr(slash + 1);
    const bool is_typed = std::all_of(last.begin(), last.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    suite = is_typed ? suite.substr(0, slash) : last;
    if (is_typed && suite.rfind('/') != std::string::npos) suite = suite.substr(suite.rfind('/') + 1);
  }
  const auto slash = test.find('/');
  return {.entry = "",
          .name = suite + "." + test.substr(0, slash),
          .parameter = slash == std::string::npos ? "" : test.substr(slash + 1)};
}

// The longest kind that the parameter begins with.
std::string kind_of(const std::string& parameter, const std::vector<std::string>& kinds) {
  std::string found;
  for (const auto& kind : kinds) {
    const bool matches = parameter == kind || parameter.starts_with(kind + "_");
    if (matches && kind.size() > found.size()) found = kind;
  }
  return found;
}

std::string without_backticks(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '`'), text.end());
  return text;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  static const std::regex between(R"( \| )");
  const auto inner = line.substr(2, line.size() - 4);  // without "| " and " |"
  for (std::sregex_token_iterator cell(inner.begin(), inner.end(), between, -1), end; cell != end; ++cell)
    cells.push_back(*cell);
  return cells;
}

// Subject to area, from the lines "## AREA" and "* **SUBJECT.** ...".
std::map<std::string, std::string> areas_of(const std::string& guide) {
  std::map<std::string, std::string> areas;
  std::string area;
  // A bold subject may break into two lines.
  static const std::regex part(R"(\n## ([^\n]+)|\n\* \*\*((?:.|\n)+?)\.\*\*)");
  for (std::sregex_iterator match(guide.begin(), guide.end(), part), end; match != end; ++match) {
    if ((*match)[1].matched) area = (*match)[1];
    if ((*match)[2].matched) areas[std::regex_replace((*match)[2].str(), std::regex(R"(\s+)"), " ")] = area;
  }
  return areas;
}

struct Count {
  int passed = 0, failed = 0;
};

// A test that several builds or parameters ran passed if none of them failed.
std::map<std::string, Count> count_by_name(const std::vector<TestResult>& results) {
  std::map<std::string, Count> counts;
  for (const auto& result : results) ++(result.passed ? counts[result.name].passed : counts[result.name].failed);
  return counts;
}

}  // namespace

TestLog read_test_log(const std::string& text) {
  TestLog log;
  std::string entry;
  std::istringstream lines(text);
  static const std::regex begin(R"(^\d+/\d+ Testing: (.+)$)");
  // Failures are listed again at the end of a program's output, without the time in parentheses.
  static const std::regex end(R"(^\[ *(OK|FAILED) *\] (\S+?),? .*\(\d+ ms\)$)");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[") && std::regex_match(line, match, end)) {
      auto result = parse_name(match[2]);
      result.entry = entry;
      result.passed = match[1] == "OK";
      log.results.push_back(std::move(result));
    } else if (line.find(" Testing: ") != std::string::npos && std::regex_match(line, match, begin)) {
      entry = match[1];
    } else if (line == "Test Failed.") {
      log.failed_entries.push_back(entry);
    }
  }
  return log;
}

std::vector<sim::FaultRuns> fault_runs(const std::vector<TestResult>& results, const std::vector<std::string>& kinds) {
  std::map<std::pair<std::string, std::string>, Count> counts;  // kind and test
  for (const auto& result : results) {
    // Recorded faults are those of Accelerate, not injected ones.
    const bool is_about_faults =
        result.entry.find("fault") != std::string::npos && !result.entry.starts_with("recorded");
    const auto kind = kind_of(result.parameter, kinds);
    if (kind.empty() && !is_about_faults) continue;
    auto& count = counts[{kind, result.name}];
    ++(result.passed ? count.passed : count.failed);
  }
  std::vector<sim::FaultRuns> runs;
  // Those with a kind first: "" sorts before them.
  for (const bool has_kind : {true, false}) {
    for (const auto& [key, count] : counts) {
      if (key.first.empty() == has_kind) continue;
      runs.push_back({has_kind ? key.first : "generated or several", key.second, count.passed, count.failed});
    }
  }
  return runs;
}

std::vector<sim::KnownDifference> read_differences(const std::string& table, const std::string& guide,
                                                   const std::vector<TestResult>& results) {
  const auto areas = areas_of(guide);
  const auto counts = count_by_name(results);
  std::vector<sim::KnownDifference> differences;
  std::istringstream lines(table);
  static const std::regex quoted("`([^`]+)`");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ") || line.starts_with("| Subject ")) continue;
    const auto cells = cells_of(line);
    if (cells.size() != 5) continue;
    const auto area = areas.find(cells[0]);
    sim::KnownDifference one{.area = area == areas.end() ? "Other" : area->second,
                             .subject = without_backticks(cells[0]),
                             .theirs = without_backticks(cells[1]),
                             .ours = without_backticks(cells[2]),
                             .threads = cells[3] == "-" ? "none known" : cells[3]};
    for (std::sregex_iterator test(cells[4].begin(), cells[4].end(), quoted), end; test != end; ++test) {
      ++one.tests;
      const auto found = counts.find((*test)[1]);
      if (found == counts.end()) continue;
      ++(found->second.failed > 0 ? one.failed : one.passed);
    }
    differences.push_back(std::move(one));
  }
  return differences;
}

}  // namespace accel::programs
