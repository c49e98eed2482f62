#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Text as HTML, and pictures as SVG. Thread rule: any thread.
namespace accel::sim::report {

/// What a browser shows as the text itself, between tags and in attributes alike.
std::string escape(std::string_view text);

struct HtmlTable {
  std::vector<std::string> columns;  ///< the first holds names, the others numbers
  std::vector<std::vector<std::string>> rows;
};

/// The table behind a picture: folded, scrolling within itself.
std::string folded_table(const std::string& summary, const HtmlTable& table);

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
};

struct SvgHead {
  std::string id;                  ///< of the page's elements; unique
  std::string title, description;  ///< for who cannot see it
  double width = 0, height = 0;
};

/// A picture inside a page. Colours and fonts come from the page's style, by class, so that one picture serves light
/// and dark.
///
///     Svg svg({.id = "loss", .title = "Loss", .description = "Falls from 2.3 to 0.4", .width = 340, .height = 200});
///     svg.line({0, 0}, {10, 10}, "grid");
///     const auto html = svg.finish();
///
/// Every coordinate is finite (else InternalError). Thread rule: none; one thread draws.
class Svg {
 public:
  explicit Svg(const SvgHead& head);

  void line(Point from, Point to, std::string_view style);
  void polyline(const std::vector<Point>& points, std::string_view style);
  /// A tooltip, if not empty, shows when the pointer rests on it.
  void box(const Box& box, std::string_view style, std::string_view tooltip = {});
  void dot(Point center, double radius, std::string_view style, std::string_view tooltip = {});
  /// The style says which end of the words stands at the place: "start" (default), "middle" or "end".
  void text(Point place, std::string_view style, std::string_view words);

  [[nodiscard]] std::string finish() const { return text_ + "</svg>\n"; }

 private:
  void close_with(const char* element, std::string_view tooltip);

  std::string text_;
};

}  // namespace accel::sim::report
