#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/run_report.hpp"
#include "sim/report/scale.hpp"

/// The parts of the page, and what they are made of. Thread rule: any thread.
namespace accel::sim::report {

/// `body` is HTML.
std::string section(const std::string& id, const std::string& heading, const std::string& body);
/// A section without data.
std::string empty_section(const std::string& id, const std::string& heading, const std::string& why);
/// `words` are text.
std::string paragraph(const std::string& words);
std::string bullets(const std::vector<std::string>& lines);
/// The colours of a chart: style and name of each.
std::string legend(const std::vector<std::pair<std::string, std::string>>& entries);
/// One chart for wide and one for narrow screens, of which the style shows one.
std::string chart(const std::string& id, const std::function<std::string(const Canvas&)>& draw);

// Each a <section> with a heading; one without data says so in a line.
std::string diagnosis_section(const RunReport& report);
std::string findings_section(const RunReport& report);
std::string faults_section(const RunReport& report);
std::string loss_section(const RunReport& report);
std::string step_section(const RunReport& report);
std::string volume_section(const RunReport& report);
std::string memory_section(const RunReport& report);
std::string scaling_section(const RunReport& report);

/// The page's CSS. Blue and orange are Okabe and Ito's (Color Universal Design, 2008); their pinks and reds come close
/// to one of both for some eyes, so the third part of a step is between them. A test measures it.
extern const std::string_view kPageStyle;

}  // namespace accel::sim::report
