#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {

std::string diagnosis_section(const RunReport& report) {
  if (report.diagnosis.empty())
    return empty_section("diagnosis", "Diagnosis", "None: the run met no hang, no desync and no failure.");
  return section("diagnosis", "Diagnosis", fmt::format("<pre tabindex=\"0\">{}</pre>\n", escape(report.diagnosis)));
}

std::string findings_section(const RunReport& report) {
  return report.findings.empty() ? empty_section("findings", "Findings", "None.")
                                 : section("findings", "Findings", bullets(report.findings));
}

std::string faults_section(const RunReport& report) {
  return report.faults.empty() ? empty_section("faults", "Faults", "None were injected.")
                               : section("faults", "Faults", bullets(report.faults));
}

std::string memory_section(const RunReport& report) {
  if (report.memory.empty()) return empty_section("memory", "Memory", "No rank's memory was counted.");
  HtmlTable table{.columns = {"kind", "bytes"}};
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : report.memory) {
    table.rows.push_back({kind, bytes_text(static_cast<double>(bytes))});
    sum += bytes;
  }
  return section("memory", "Memory",
                 paragraph(fmt::format("Of the rank that held most of each kind, at most: {} in all. Activations are "
                                       "what forward leaves for backward, with its "
                                       "temporaries.",
                                       bytes_text(static_cast<double>(sum)))) +
                     folded_table("Memory as a table", table));
}

}  // namespace accel::sim::report
