#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

/// Opens a page in headless Chromium, to see what a person would see.
///
/// Example: `Browser browser; const auto view = browser.open(page, {.width = 390}); EXPECT_THAT(view.console,
/// IsEmpty());`
///
/// Thread rule: none; open one page at a time.
namespace accel::testing {

using Colour = std::array<std::uint8_t, 3>;  // red, green, blue

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
  [[nodiscard]] Colour at(double x, double y) const;
};

struct BrowserOptions {
  int width = 1100, height = 3600;  ///< size of the window, high enough for the full page
  bool is_dark = false;
  bool has_picture = false;
};

struct BrowserView {
  /// Measurements of the page from within; see kMeasure in browser.cpp.
  nlohmann::json seen;
  /// The lines of the browser's console.
  std::vector<std::string> console;
  Picture picture;
};

class Browser {
 public:
  /// Throws std::runtime_error if Chromium is missing or fails.
  BrowserView open(const std::string& page, const BrowserOptions& options = {}) {
    return open(std::vector{page}, options).front();
  }
  /// Opens several pages side by side in one browser. They share the console, and the picture shows the first page.
  std::vector<BrowserView> open(const std::vector<std::string>& pages, const BrowserOptions& options = {});

 private:
  TemporaryFolder folder_;
};

}  // namespace accel::testing
