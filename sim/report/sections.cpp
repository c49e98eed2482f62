// The building blocks of the page's sections. Identifiers are derived from the section's id, so that headings
// and charts have unique ones.
#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include "sim/report/markup.hpp"

namespace accel::sim::report {

namespace {

std::string with_heading(const std::string& id, const std::string& style, const std::string& heading,
                         const std::string& body) {
  return fmt::format(
      "<section id=\"{0}\"{1} aria-labelledby=\"{0}-heading\">\n<h2 id=\"{0}-heading\">{2}</h2>\n{3}</section>\n", id,
      style, escape(heading), body);
}

}  // namespace

std::string section(const std::string& id, const std::string& heading, const std::string& body) {
  return with_heading(id, "", heading, body);
}

// Kept on the page instead of left out: a reader sees that the data was not recorded.
std::string empty_section(const std::string& id, const std::string& heading, const std::string& why) {
  return with_heading(id, " class=\"empty\"", heading, paragraph(why));
}

std::string paragraph(const std::string& words) { return fmt::format("<p>{}</p>\n", escape(words)); }

std::string bullets(const std::vector<std::string>& lines) {
  std::string html = "<ul class=\"lines\">\n";
  for (const auto& line : lines) html += fmt::format("<li>{}</li>\n", escape(line));
  return html + "</ul>\n";
}

std::string legend(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string html = "<ul class=\"legend\">";
  for (const auto& [style, name] : entries) html += fmt::format("<li><i class=\"{}\"></i>{}</li>", style, escape(name));
  return html + "</ul>\n";
}

// Two drawings instead of one that scales: scaling would shrink the letters on a phone.
std::string chart(const std::string& id, const std::function<std::string(const Canvas&)>& draw) {
  return fmt::format("<div class=\"wide\">\n{}</div>\n<div class=\"narrow\">\n{}</div>\n", draw({id + "-chart", 920}),
                     draw({id + "-narrow-chart", 340}));
}

}  // namespace accel::sim::report
