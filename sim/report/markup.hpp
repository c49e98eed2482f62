#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Writes text as HTML and charts as SVG. Thread rule: any thread.
namespace accel::sim::report {

/// Escapes text so that a browser shows it literally, between tags and in attributes.
std::string escape(std::string_view text);

struct HtmlTable {
  std::vector<std::string> columns;  ///< the first holds names, the others numbers
  std::vector<std::vector<std::string>> rows = {};
  bool wraps = false;  ///< cells hold sentences, which break into lines
};

/// Returns the table as HTML, with its own scroll bar.
std::string open_table(const HtmlTable& table);
/// The same, folded: the table of a chart's numbers.
std::string folded_table(const std::string& summary, const HtmlTable& table);

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
};

struct SvgHead {
  std::string id;                  ///< unique among the page's elements
  std::string title, description;  ///< for screen readers
  double width = 0, height = 0;
};

/// An inline SVG picture. Colours and fonts come from the page's style, by class, so that one picture serves light and
/// dark mode.
///
///     Svg svg({.id = "loss", .title = "Loss", .description = "Falls from 2.3 to 0.4", .width = 340, .height = 200});
///     svg.line({0, 0}, {10, 10}, "grid");
///     const auto html = svg.finish();
///
/// Every coordinate must be finite (else InternalError). Thread rule: one thread draws.
class Svg {
 public:
  explicit Svg(const SvgHead& head);

  void line(Point from, Point to, std::string_view style);
  void polyline(const std::vector<Point>& points, std::string_view style);
  /// The tooltip, if not empty, is shown while the pointer rests on the box.
  void box(const Box& box, std::string_view style, std::string_view tooltip = {});
  void dot(Point center, double radius, std::string_view style, std::string_view tooltip = {});
  /// The style sets which end of the text is at `place`: "start" (default), "middle" or "end".
  void text(Point place, std::string_view style, std::string_view words);

  [[nodiscard]] std::string finish() const { return text_ + "</svg>\n"; }

 private:
  void close_with(const char* element, std::string_view tooltip);

  std::string text_;
};

}  // namespace accel::sim::report
