#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include "sim/report/html.hpp"
#include "sim/report/section.hpp"

namespace accel::sim::detail {

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

}  // namespace accel::sim::detail
