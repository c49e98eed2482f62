#pragma once

#include <string>

#include "sim/report/run_report.hpp"

/// The parts of the page, each a <section> with a heading; one without data says so in a line. Thread rule: any thread.
namespace accel::sim::report {

std::string diagnosis_section(const RunReport& report);
std::string findings_section(const RunReport& report);
std::string faults_section(const RunReport& report);
std::string loss_section(const RunReport& report);
std::string step_section(const RunReport& report);
std::string volume_section(const RunReport& report);
std::string memory_section(const RunReport& report);
std::string scaling_section(const RunReport& report);

}  // namespace accel::sim::report
