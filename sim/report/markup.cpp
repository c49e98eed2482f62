// The only place that writes tags. Everything from outside (names of operations, findings, the command line)
// passes through `escape`: a report may be opened by somebody who did not run the program.
#include "sim/report/markup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"

namespace accel::sim::report {
namespace {

// Formats a coordinate to a tenth of a pixel, which is enough and keeps pages small and byte-identical.
std::string at(double coordinate) {
  ensure(std::isfinite(coordinate), "got the coordinate {} in a picture; expected a finite number", coordinate);
  const auto tenths = std::llround(coordinate * 10);
  return tenths % 10 == 0 ? fmt::format("{}", tenths / 10) : fmt::format("{:.1f}", static_cast<double>(tenths) / 10);
}

}  // namespace

// Escapes both quotes as well, because the same function serves attributes.
std::string escape(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char byte : text) {
    switch (byte) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe += byte;
    }
  }
  return safe;
}

// `tabindex` makes the scrolling table reachable by keyboard; `scope` tells screen readers which header belongs
// to a cell.
std::string open_table(const HtmlTable& table) {
  auto html = fmt::format("<div class=\"scroll\" tabindex=\"0\"><table{}>\n<thead><tr>",
                          table.wraps ? " class=\"sentences\"" : "");
  for (const auto& column : table.columns) html += fmt::format("<th scope=\"col\">{}</th>", escape(column));
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const auto& cell : row) {  // HTML closes the previous cell implicitly
      html += &cell == &row.front() ? "<th scope=\"row\">" : "<td>";
      html += escape(cell);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>";
}

std::string folded_table(const std::string& summary, const HtmlTable& table) {
  return fmt::format("<details><summary>{}</summary>{}</details>\n", escape(summary), open_table(table));
}

// The title and the description are what a screen reader reads instead of the picture; ids tie them to it.
Svg::Svg(const SvgHead& head) {
  text_ = fmt::format(
      "<svg id=\"{0}\" viewBox=\"0 0 {1} {2}\" role=\"img\" aria-labelledby=\"{0}-title {0}-description\">"
      "<title id=\"{0}-title\">{3}</title><desc id=\"{0}-description\">{4}</desc>\n",
      escape(head.id), at(head.width), at(head.height), escape(head.title), escape(head.description));
}

void Svg::line(Point from, Point to, std::string_view style) {
  text_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", style, at(from.x), at(from.y),
                       at(to.x), at(to.y));
}

void Svg::polyline(const std::vector<Point>& points, std::string_view style) {
  text_ += fmt::format("<polyline class=\"{}\" points=\"", style);
  for (const auto& point : points) text_ += fmt::format("{},{} ", at(point.x), at(point.y));
  text_ += "\"/>\n";
}

void Svg::box(const Box& box, std::string_view style, std::string_view tooltip) {
  text_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", style, at(box.left),
                       at(box.top), at(std::max(0.0, box.right - box.left)), at(std::max(0.0, box.bottom - box.top)));
  close_with("rect", tooltip);
}

void Svg::dot(Point center, double radius, std::string_view style, std::string_view tooltip) {
  text_ +=
      fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"", style, at(center.x), at(center.y), at(radius));
  close_with("circle", tooltip);
}

void Svg::text(Point place, std::string_view style, std::string_view words) {
  text_ +=
      fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", style, at(place.x), at(place.y), escape(words));
}

// An SVG tooltip is a <title> child; it works without script, also in mail clients that block scripts.
void Svg::close_with(const char* element, std::string_view tooltip) {
  text_ += tooltip.empty() ? "/>\n" : fmt::format("><title>{}</title></{}>\n", escape(tooltip), element);
}

}  // namespace accel::sim::report
