#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Text as HTML. Thread rule: any thread.
namespace accel::sim::report {

/// What a browser shows as the text itself, between tags and in attributes alike.
std::string escape(std::string_view text);

struct HtmlTable {
  std::vector<std::string> columns;  ///< the first holds names, the others numbers
  std::vector<std::vector<std::string>> rows;
};

/// The table behind a picture: folded, scrolling within itself.
std::string folded_table(const std::string& summary, const HtmlTable& table);

}  // namespace accel::sim::report
