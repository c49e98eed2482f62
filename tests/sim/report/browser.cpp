#include "tests/sim/report/browser.hpp"

#include <fmt/format.h>
#include <png.h>

#include <sstream>
#include <stdexcept>

#include "sim/report/markup.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing {
namespace {

// Runs at the end of the page, in the window itself or in a frame of it. Stores its measurements on the root
// element of the window, because --dump-dom prints the DOM and nothing else.
constexpr auto kMeasure = R"js(<script>{
  const box = element => {
    const b = element.getBoundingClientRect();
    return {left: b.left, top: b.top, right: b.right, bottom: b.bottom};
  };
  const all = (root, what) => [...root.querySelectorAll(what)];
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 &&
                         a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const shape = element => ({style: element.getAttribute('class'), ...box(element),
                             fill: getComputedStyle(element).fill,
                             stroke: getComputedStyle(element).stroke,
                             name: (element.querySelector('title') || {textContent: ''}).textContent});
  const chart = svg => {
    const outside = box(svg), texts = all(svg, 'text').map(text => ({words: text.textContent, ...box(text)}));
    const wrong = texts.filter(text => !inside(text, outside)).map(text => text.words + ' is outside');
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      if (meet(a, b)) wrong.push(a.words + ' is over ' + b.words); }));
    return {id: svg.id, ...outside, scale: (outside.right - outside.left) / svg.viewBox.baseVal.width,
            wrong_texts: wrong,
            title: svg.querySelector('title').textContent, description: svg.querySelector('desc').textContent,
            shapes: all(svg, 'rect, polyline, circle, line').map(shape)};
  };
  const seen = {inner_width: innerWidth, scroll_width: document.documentElement.scrollWidth, title: document.title,
    bottom: document.body.getBoundingClientRect().bottom, background: getComputedStyle(document.body).backgroundColor,
    sections: all(document, 'section').map(section => ({id: section.id, text: section.innerText})),
    foreign: all(document, 'script, img, link, iframe').length - 1,
    charts: all(document, 'svg').filter(svg => svg.getBoundingClientRect().width > 0).map(chart)};
  all(document, 'details').forEach(details => details.open = true);
  seen.scroll_width_unfolded = document.documentElement.scrollWidth;
  seen.tables = all(document, 'table').map(table => table.innerText);
  all(document, 'details').forEach(details => details.open = false);
  parent.document.documentElement.dataset['seen' + (window.name || '0')] = encodeURIComponent(JSON.stringify(seen));
}</script>)js";

constexpr int kNarrowestWindow = 500;  // Chromium's minimum; narrower pages are shown in a frame

// The script goes before </body>, so that the page is complete when it runs.
std::string with_script(const std::string& page) {
  auto copy = page;
  const auto end = copy.rfind("</body>");
  return copy.insert(end == std::string::npos ? copy.size() : end, kMeasure);
}

// Puts the pages into frames side by side, named by their numbers.
std::string framed(const std::vector<std::string>& pages, const BrowserOptions& options) {
  std::string html = "<!doctype html><body style=\"margin:0;white-space:nowrap\">";
  for (std::size_t index = 0; index < pages.size(); ++index) {
    html += fmt::format("<iframe name=\"{}\" style=\"border:0\" width=\"{}\" height=\"{}\" srcdoc=\"{}\"></iframe>",
                        index, options.width, options.height, sim::report::escape(with_script(pages[index])));
  }
  return html + "</body>";
}

// The page's script leaves its measurements in an attribute of the document.
nlohmann::json seen_in(const std::string& dom, std::size_t index) {
  const auto key = fmt::format("data-seen{}=\"", index);
  const auto begin = dom.find(key);
  if (begin == std::string::npos)
    throw std::runtime_error("the browser did not run the page's script:\n" + dom.substr(0, 1000));
  std::string text;
  // The measurements are percent-encoded, because the DOM dump escapes quotes and angle brackets.
  for (auto place = begin + key.size(); dom.at(place) != '"'; ++place) {
    if (dom[place] != '%') {
      text += dom[place];
    } else {
      text += static_cast<char>(std::stoi(dom.substr(place + 1, 2), nullptr, 16));
      place += 2;
    }
  }
  return nlohmann::json::parse(text);
}

// What the page wrote to the browser's console; a page without errors writes nothing.
std::vector<std::string> console_lines(const std::string& log) {
  std::vector<std::string> lines;
  std::istringstream in(log);
  for (std::string line; std::getline(in, line);) {
    // Chromium logs much else to standard error.
    if (line.find(":CONSOLE:") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// Reads the screenshot.
Picture read_picture(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, path.c_str()) == 0) throw std::runtime_error(path + ": " + image.message);
  image.format = PNG_FORMAT_RGB;
  Picture picture{static_cast<int>(image.width), static_cast<int>(image.height),
                  std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  if (png_image_finish_read(&image, nullptr, picture.rgb.data(), 0, nullptr) == 0)
    throw std::runtime_error(path + ": " + image.message);
  return picture;
}

}  // namespace

// The colour of the pixel at a place in the page.
Colour Picture::at(double x, double y) const {
  const auto column = static_cast<int>(x), row = static_cast<int>(y);
  if (column < 0 || column >= width || row < 0 || row >= height)
    throw std::out_of_range(fmt::format("pixel ({}, {}) of a picture of {} x {}", column, row, width, height));
  const auto* pixel =
      &rgb[3 * (static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + static_cast<std::size_t>(column))];
  return {pixel[0], pixel[1], pixel[2]};
}

std::vector<BrowserView> Browser::open(const std::vector<std::string>& pages, const BrowserOptions& options) {
  const bool fits = pages.size() == 1 && options.width >= kNarrowestWindow;
  const auto file = folder_.write("page.html", fits ? with_script(pages.front()) : framed(pages, options));
  std::vector<std::string> command = {
      "chromium",
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--hide-scrollbars",
      "--no-first-run",
      "--disable-background-networking",
      "--enable-logging=stderr",
      "--user-data-dir=" + folder_.path("profile"),
      fmt::format("--window-size={},{}", std::max(options.width, kNarrowestWindow), options.height),
      "--dump-dom"};
  if (options.has_picture) command.push_back("--screenshot=" + folder_.path("page.png"));
  // The option selects the dark colour scheme; 0 is dark in Chromium's enumeration.
  if (options.is_dark) command.push_back("--blink-settings=preferredColorScheme=0");
  command.push_back("file://" + file);
  const auto run = run_command(command);
  // 127 is the exit code of a program that was not found.
  if (run.exit_code == 127) throw std::runtime_error("chromium was not found: on Debian, apt-get install chromium");
  if (run.exit_code != 0)
    throw std::runtime_error(fmt::format("chromium ended with {}:\n{}", run.exit_code, run.error));
  std::vector<BrowserView> views;
  for (std::size_t index = 0; index < pages.size(); ++index)
    views.push_back({seen_in(run.output, index), console_lines(run.error), {}});
  if (options.has_picture) views.front().picture = read_picture(folder_.path("page.png"));
  return views;
}

}  // namespace accel::testing
