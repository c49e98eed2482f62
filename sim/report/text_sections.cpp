// The sections that are text or a table only: diagnosis, findings, faults, memory.
#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {

std::string diagnosis_section(const RunReport& report) {
  if (report.diagnosis.empty())
    return empty_section("diagnosis", "Diagnosis", "None: the run had no hang, desync or failure.");
  // Preformatted: the diagnosis is a text with indented lines. It can be focused, so that the keyboard can
  // scroll it.
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

// The sum is an upper bound: the kinds' peaks may occur on different ranks and at different times.
std::string memory_section(const RunReport& report) {
  if (report.memory.empty()) return empty_section("memory", "Memory", "No memory was measured.");
  HtmlTable table{.columns = {"kind", "bytes"}};
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : report.memory) {
    table.rows.push_back({kind, bytes_text(static_cast<double>(bytes))});
    sum += bytes;
  }
  return section(
      "memory", "Memory",
      paragraph(fmt::format("Peak of each kind, on the rank that held the most of it: {} in total. Activations are "
                            "the tensors that forward keeps for backward, and its "
                            "temporaries.",
                            bytes_text(static_cast<double>(sum)))) +
          folded_table("Memory as a table", table));
}

}  // namespace accel::sim::report
