// The distributions of the generators of cases: a chart and a table per generator, folded.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/verification_sections.hpp"

namespace accel::sim::report {
namespace {

// A feature may count several values per case, such as the operations of a program.
std::int64_t total_cases(const GeneratorFeature& feature) {
  std::int64_t sum = 0;
  for (const auto& [value, cases] : feature.values) sum += cases;
  return sum;
}

double share_of(std::int64_t cases, std::int64_t of) {
  return of == 0 ? 0 : static_cast<double>(cases) / static_cast<double>(of);
}

// The rarest value shows whether the generator reaches everything.
std::string rarest_text(const GeneratorFeature& feature) {
  const auto rarest = std::min_element(feature.values.begin(), feature.values.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (rarest == feature.values.end()) return "";
  return fmt::format("rarest {}", percent_text(share_of(rarest->second, total_cases(feature))));
}

std::string distribution_chart(const GeneratorDistribution& one, const Canvas& canvas) {
  Svg svg(
      {canvas.id, fmt::format("Distribution of {}", one.generator),
       fmt::format("Shares of the values of {}.", plural(static_cast<std::int64_t>(one.features.size()), "feature")),
       canvas.width, kRowHeight * static_cast<double>(one.features.size())});
  double top = 0;
  for (const auto& feature : one.features) {
    const auto numbers =
        fmt::format("{}, {}", plural(static_cast<std::int64_t>(feature.values.size()), "value"), rarest_text(feature));
    const auto bar = draw_row(svg, canvas, top, feature.name, numbers);
    auto left = bar.left;
    bool is_even = true;
    for (const auto& [value, cases] : feature.values) {
      const auto right = left + canvas.width * share_of(cases, total_cases(feature));
      svg.box({left, bar.top, right, bar.bottom}, is_even ? "value-even" : "value-odd",
              fmt::format("{} {}: {}", feature.name, value, percent_text(share_of(cases, total_cases(feature)))));
      left = right, is_even = !is_even;
    }
    top += kRowHeight;
  }
  return svg.finish();
}

std::string folded_generator(const GeneratorDistribution& one, std::size_t number) {
  HtmlTable table{.columns = {"feature and value", "cases", "share"}};
  for (const auto& feature : one.features) {
    for (const auto& [value, cases] : feature.values)
      table.rows.push_back(
          {feature.name + ": " + value, count_text(cases), percent_text(share_of(cases, total_cases(feature)))});
  }
  if (one.features.empty()) return paragraph(one.generator + ": no features were counted.");
  const auto picture =
      chart(fmt::format("generator-{}", number), [&](const Canvas& canvas) { return distribution_chart(one, canvas); });
  return fmt::format("<details><summary>{}: {}</summary>\n{}{}</details>\n", escape(one.generator),
                     plural(one.cases, "case"), picture, open_table(table));
}

}  // namespace

std::string generators_section(const VerificationReport& report) {
  if (report.generators.empty())
    return empty_section("generators", "Distributions of the generators",
                         "No distributions. ./dev test distribution_laws produces them.");
  std::string folded;
  for (std::size_t index = 0; index < report.generators.size(); ++index)
    folded += folded_generator(report.generators[index], index);
  return section("generators", "Distributions of the generators",
                 paragraph("A property proves little if its cases never reach what it is about. Each bar divides the "
                           "cases of a generator by the values of one feature.") +
                     origin_line(report.tests) + folded);
}

}  // namespace accel::sim::report
