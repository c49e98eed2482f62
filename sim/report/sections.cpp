// The building blocks of the page's sections. Identifiers are derived from the section's id, so that headings
// and charts have unique ones.
#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/report/markup.hpp"

namespace accel::sim::report {

namespace {

std::string with_heading(const std::string& id, const std::string& style, const std::string& heading,
                         const std::string& body) {
  return fmt::format(
      "<section id=\"{0}\"{1} aria-labelledby=\"{0}-heading\">\n<h2 id=\"{0}-heading\">{2}</h2>\n{3}</section>\n", id,
      style, escape(heading), body);
}

// Browsers break a line after a hyphen, inside "--option". Each word gets a span that the style keeps unbroken.
std::string unbroken_words(const std::string& text) {
  std::string html;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    html += fmt::format("{}<span>{}</span>", begin == 0 ? "" : " ", escape(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return html;
}

}  // namespace

std::string whole_page(const std::string& title, const std::string& head, const std::string& sections) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{0}</h1>\n{2}</header>\n{3}</"
      "main>\n"
      "</body>\n</html>\n",
      escape(title), kPageStyle, head, sections);
}

std::string fact_list(const std::vector<std::pair<std::string, std::string>>& facts) {
  if (facts.empty()) return "";
  std::string html = "<dl class=\"card facts\">\n";
  for (const auto& [name, value] : facts) {
    // Long facts, such as a command line, get a separate row in the grid.
    const bool is_long = name.size() + value.size() > 44;
    html += fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n", is_long ? " class=\"long\"" : "", escape(name),
                        unbroken_words(value));
  }
  return html + "</dl>\n";
}

std::string figure_list(const std::vector<std::pair<std::string, std::string>>& figures) {
  if (figures.empty()) return "";
  std::string html = "<ul class=\"figures\">\n";
  for (const auto& [value, name] : figures) html += fmt::format("<li><b>{}</b>{}</li>\n", escape(value), escape(name));
  return html + "</ul>\n";
}

// A symbol next to the colour: readers who cannot tell the colours apart see the result as well.
std::string verdict_line(Verdict verdict, const std::string& words) {
  const auto line = [&](const char* style, const char* symbol) {
    return fmt::format("<p class=\"verdict {}\">{} {}</p>\n", style, symbol, escape(words));
  };
  switch (verdict) {
    case Verdict::kGood: return line("good", "✓");
    case Verdict::kWarning: return line("warn", "!");
    case Verdict::kBad: break;
  }
  return line("bad", "✕");
}

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
