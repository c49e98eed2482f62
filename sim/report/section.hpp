#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/report/scale.hpp"

/// What sections are made of. Thread rule: any thread.
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

}  // namespace accel::sim::report
