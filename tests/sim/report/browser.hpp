#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

/// A page as a person's browser shows it: headless Chromium.
///
///     Browser browser;
///     const auto view = browser.open(page, {.width = 390});
///     EXPECT_THAT(view.console, IsEmpty());
///
/// Thread rule: none; one page at a time.
namespace accel::testing {

using Colour = std::array<std::uint8_t, 3>;  // red, green, blue

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
  [[nodiscard]] Colour at(double x, double y) const;
};

struct BrowserOptions {
  int width = 1100, height = 3600;  ///< of the window; the height holds the whole page, so that the picture shows it
  bool is_dark = false;
  bool has_picture = false;
};

struct BrowserView {
  /// What the page looks like from within; see kMeasure in browser.cpp.
  nlohmann::json seen;
  /// What the browser's console would show.
  std::vector<std::string> console;
  Picture picture;
};

class Browser {
 public:
  /// Throws std::runtime_error if there is no Chromium, or if it does not end well.
  BrowserView open(const std::string& page, const BrowserOptions& options = {}) {
    return open(std::vector{page}, options).front();
  }
  /// Several pages side by side, in one start of the browser; their console is one, and their picture is of the first.
  std::vector<BrowserView> open(const std::vector<std::string>& pages, const BrowserOptions& options = {});

 private:
  TemporaryFolder folder_;
};

}  // namespace accel::testing
