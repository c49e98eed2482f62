#include "sim/report/html.hpp"

#include <fmt/format.h>

namespace accel::sim::report {

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

std::string folded_table(const std::string& summary, const HtmlTable& table) {
  auto html = fmt::format("<details><summary>{}</summary><div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>",
                          escape(summary));
  for (const auto& column : table.columns) html += fmt::format("<th scope=\"col\">{}</th>", escape(column));
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const auto& cell : row) {  // a cell that begins ends the one before it
      html += &cell == &row.front() ? "<th scope=\"row\">" : "<td>";
      html += escape(cell);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></details>\n";
}

}  // namespace accel::sim::report
