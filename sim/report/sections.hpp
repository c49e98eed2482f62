#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/run_report.hpp"
#include "sim/report/scale.hpp"

/// The sections of the page and their building blocks. Thread rule: any thread.
namespace accel::sim::report {

/// Returns a page; `head` (below the title) and `sections` are HTML.
std::string whole_page(const std::string& title, const std::string& head, const std::string& sections);
/// Returns names and values as a list for the head of a page.
std::string fact_list(const std::vector<std::pair<std::string, std::string>>& facts);
/// Returns the headline numbers of a page, which a reader looks for first: each value with its name.
std::string figure_list(const std::vector<std::pair<std::string, std::string>>& figures);
enum class Verdict { kGood, kWarning, kBad };
/// Returns the result that heads a page, with a symbol; `words` are plain text and are escaped.
std::string verdict_line(Verdict verdict, const std::string& words);
/// Returns a section; `body` is HTML.
std::string section(const std::string& id, const std::string& heading, const std::string& body);
/// Returns a section that states why it has no data.
std::string empty_section(const std::string& id, const std::string& heading, const std::string& why);
/// Returns a paragraph; `words` are plain text and are escaped.
std::string paragraph(const std::string& words);
std::string bullets(const std::vector<std::string>& lines);
/// Returns the legend of a chart: the style and name of each colour.
std::string legend(const std::vector<std::pair<std::string, std::string>>& entries);
/// Returns a chart in two widths, for wide and narrow screens; the style sheet shows one of them.
std::string chart(const std::string& id, const std::function<std::string(const Canvas&)>& draw);

// Each returns a <section> with a heading; a section without data is one line.
std::string diagnosis_section(const RunReport& report);
std::string findings_section(const RunReport& report);
std::string faults_section(const RunReport& report);
std::string loss_section(const RunReport& report);
std::string step_section(const RunReport& report);
std::string volume_section(const RunReport& report);
std::string memory_section(const RunReport& report);
std::string scaling_section(const RunReport& report);

/// The page's CSS. Blue and orange are those of Okabe and Ito (Color Universal Design, 2008). Their pinks and reds look
/// like one of these two to some colour-blind readers, so the third part of a step uses a colour between them. A test
/// measures the differences.
extern const std::string_view kPageStyle;

}  // namespace accel::sim::report
