// The page of a comparison. It consists of the sections and the style of the page of a run (report_page.cpp).
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/comparison_report.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/sections.hpp"

namespace accel::sim {
namespace {

std::string comparison_verdict(const ComparisonReport& report) {
  return report.difference.empty() ? report::verdict_line(report::Verdict::kGood, "equal")
                                   : report::verdict_line(report::Verdict::kBad, "different");
}

std::string difference_section(const ComparisonReport& report) {
  if (report.difference.empty())
    return report::empty_section("difference", "First difference", "None: all observations are equal.");
  report::HtmlTable table{.columns = {"observation", "step", report.name_of_a, report.name_of_b}};
  for (const auto& [step, what, a, b] : report.around) table.rows.push_back({what, fmt::format("{}", step), a, b});
  return report::section("difference", "First difference",
                         fmt::format("<pre tabindex=\"0\">{}</pre>\n", report::escape(report.difference)) +
                             report::folded_table("The observations up to it as a table", table));
}

std::string ranks_section(const ComparisonReport& report) {
  report::HtmlTable table{.columns = {"rank", "observations", "equal before the first difference", "first difference"}};
  std::int64_t num_equal = 0;
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto& [observations, equal, difference] = report.ranks[rank];
    num_equal += difference.empty() ? 1 : 0;
    table.rows.push_back({fmt::format("{}", rank), fmt::format("{}", observations), fmt::format("{}", equal),
                          difference.empty() ? "none" : difference});
  }
  return report::section(
      "ranks", "Ranks",
      report::paragraph(fmt::format("{} of {} ranks have no difference.", num_equal, report.ranks.size())) +
          report::folded_table("Ranks as a table", table));
}

}  // namespace

std::string comparison_page(const ComparisonReport& report) {
  return report::whole_page(
      report.title, comparison_verdict(report) + report::fact_list(report.facts),
      difference_section(report) + ranks_section(report) + report::loss_section({.losses = report.losses}));
}

}  // namespace accel::sim
