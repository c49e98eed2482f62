// The report in a real browser: what a person sees, measured in pixels. Layout, overlapping texts and colours
// cannot be tested in the markup. Without Chromium these tests fail instead of being skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>

#include "sim/report/run_report.hpp"
#include "tests/sim/report/browser.hpp"
#include "tests/sim/report/colour_vision.hpp"
#include "tests/sim/report/sample_reports.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

// The width of common phones in CSS pixels.
constexpr int kPhone = 390;

Colour parsed(const std::string& css) {  // "rgb(0, 114, 178)"
  int red = -1, green = -1, blue = -1;
  EXPECT_EQ(std::sscanf(css.c_str(), "rgb(%d, %d, %d)", &red, &green, &blue), 3) << css;
  return {static_cast<std::uint8_t>(red), static_cast<std::uint8_t>(green), static_cast<std::uint8_t>(blue)};
}

// Expectations of every page at any width.
void expect_sound(const BrowserView& view, int width, const std::string& name) {
  EXPECT_THAT(view.console, IsEmpty()) << name;
  EXPECT_EQ(view.seen["inner_width"], width) << name;
  EXPECT_LE(view.seen["scroll_width"], width) << name << ": the page is wider than the screen";
  EXPECT_LE(view.seen["scroll_width_unfolded"], width) << name << ": its tables are wider than the screen";
  EXPECT_EQ(view.seen["foreign"], 0) << name;
  for (const auto& chart : view.seen["charts"]) {
    EXPECT_THAT(chart["wrong_texts"].get<std::vector<std::string>>(), IsEmpty()) << name << ", " << chart["id"];
    EXPECT_GE(chart["scale"], 0.9) << name << ", " << chart["id"] << ": letters of less than 11 pixels";
    EXPECT_NE(chart["title"], "");
    EXPECT_NE(chart["description"], "");
  }
}

// The shapes of one chart that have a given style, as the browser measured them.
std::vector<Json> shapes_of(const BrowserView& view, const std::string& chart_id, const std::string& style) {
  std::vector<Json> shapes;
  for (const auto& chart : view.seen["charts"]) {
    for (const auto& shape : chart["shapes"]) {
      if (chart["id"] == chart_id && shape["style"] == style) shapes.push_back(shape);
    }
  }
  return shapes;
}

double middle(const Json& shape, const char* low, const char* high) {
  return (shape[low].get<double>() + shape[high].get<double>()) / 2;
}

// A distance of 12 tolerates anti-aliasing and still separates the colours of the charts.
bool is_close(const Colour& a, const Colour& b) { return difference(a, b, Vision::kNormal) < 12; }

// Returns the rows of a column, within the shape's chart, in which the colour is visible.
std::vector<int> ink_rows(const Picture& picture, const Json& within, double x, const Colour& colour) {
  std::vector<int> rows;
  for (int row = static_cast<int>(within["top"].get<double>()) - 3; row < within["bottom"].get<double>() + 3; ++row) {
    if (is_close(picture.at(x, row), colour)) rows.push_back(row);
  }
  return rows;
}

void expect_bars_are_painted(const BrowserView& view, const std::string& chart_id, const std::string& style,
                             std::size_t count) {
  const auto bars = shapes_of(view, chart_id, style);
  ASSERT_THAT(bars, SizeIs(count)) << chart_id << ", " << style;
  for (const auto& bar : bars) {
    const auto height = bar["bottom"].get<double>() - bar["top"].get<double>();
    // Two pixels of tolerance for rounded ends and anti-aliasing.
    EXPECT_NEAR(
        static_cast<double>(ink_rows(view.picture, bar, middle(bar, "left", "right"), parsed(bar["fill"])).size()),
        height, 2)
        << bar;
  }
}

// Expects a line that falls, with visible pixels in every column.
void expect_falling_line(const BrowserView& view, const std::string& chart_id) {
  const auto lines = shapes_of(view, chart_id, "loss");
  ASSERT_THAT(lines, SizeIs(1));
  const auto& line = lines.front();
  int last = 0;
  // Only the first half: the losses level off afterwards and the noise makes them rise.
  for (double share = 0.02; share < 0.5; share += 0.02) {
    const auto x = line["left"].get<double>() + share * (line["right"].get<double>() - line["left"].get<double>());
    const auto rows = ink_rows(view.picture, line, x, parsed(line["stroke"]));
    ASSERT_THAT(rows, ::testing::Not(IsEmpty())) << "no ink at " << share;
    EXPECT_GE(rows.front(), last - 1) << share;
    last = rows.front();
  }
  EXPECT_GT(last, middle(line, "top", "bottom"));
}

// A report of 64 ranks, which most tests use. Each start of the browser takes half a second or more.
class ReportBrowserTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto page = sim::report_page(full_report(64, 400));
    browser_ = std::make_unique<Browser>();
    for (const bool is_dark : {false, true})
      views_.push_back(browser_->open(page, {.is_dark = is_dark, .has_picture = true}));
  }
  static void TearDownTestSuite() {
    views_.clear();
    browser_.reset();
  }

  static std::vector<BrowserView> views_;  // light, dark
  static std::unique_ptr<Browser> browser_;
};

std::vector<BrowserView> ReportBrowserTest::views_;
std::unique_ptr<Browser> ReportBrowserTest::browser_;

// Everything in the report must be visible as text too, for readers who cannot see the charts.
TEST_F(ReportBrowserTest, EverySectionShowsItsNumbers) {
  const auto& view = views_.at(0);
  expect_sound(view, 1100, "64 ranks");
  std::vector<std::string> ids;
  std::map<std::string, std::string> text;
  for (const auto& section : view.seen["sections"]) {
    ids.push_back(section["id"]);
    text[section["id"]] = section["text"];
  }
  EXPECT_THAT(
      ids, ElementsAre("diagnosis", "findings", "faults", "loss", "step-time", "communication", "memory", "scaling"));
  EXPECT_THAT(text["diagnosis"], HasSubstr("None: the run had no hang"));
  EXPECT_THAT(text["findings"], HasSubstr("rank 21 is a straggler"));
  EXPECT_THAT(text["faults"], HasSubstr("slow_rank: rank 21"));
  EXPECT_THAT(text["loss"], HasSubstr("the mean of 11 steps (bold)"));
  EXPECT_THAT(text["memory"], HasSubstr("Peak of each kind, on the rank that held the most of it: 13.1 MB in total."));
  EXPECT_THAT(
      text["step-time"],
      AllOf(HasSubstr(
                "The mean step takes 25.5 ms: 49 % compute, 17 % exposed communication, 34 % waiting for stragglers."),
            HasSubstr("Rank 21 computes longest")));
  EXPECT_THAT(text["communication"], AllOf(HasSubstr("10.4 GB in 848 calls"), HasSubstr("1.31 MB in 40 calls, 31 ms")));
  EXPECT_THAT(text["scaling"], AllOf(HasSubstr("On 1,024 ranks a step takes 25.5 ms, 49 % of the ideal throughput."),
                                     HasSubstr("1,024")));
  const auto& tables = view.seen["tables"];
  ASSERT_EQ(tables.size(), 5u);
  EXPECT_THAT(tables[0].get<std::string>(), HasSubstr("398-399"));
  EXPECT_THAT(tables[1].get<std::string>(), HasSubstr("\n21\t21.2 ms\t4.3 ms\t0 s\t25.5 ms"));
  EXPECT_THAT(tables[2].get<std::string>(), HasSubstr("\nbarrier\t2\t0\t400 µs"));
  EXPECT_THAT(tables[3].get<std::string>(), HasSubstr("\noptimizer\t4 MB"));
  EXPECT_THAT(tables[4].get<std::string>(), HasSubstr("\n1,024\t25.5 ms\t49 %\t9 ms\t4 ms\t1,285,020"));
}

// The test looks at pixels: a bar with the right coordinates but without a colour would pass any check of the
// markup.
TEST_F(ReportBrowserTest, ChartsArePaintedAtTheirNumbersInLightAndDark) {
  std::vector<Colour> backgrounds;
  for (const auto& view : views_) {
    expect_sound(view, 1100, "64 ranks");
    expect_falling_line(view, "loss-chart");
    expect_bars_are_painted(view, "step-time-chart", "compute", 64);
    expect_bars_are_painted(view, "step-time-chart", "exposed", 64);
    expect_bars_are_painted(view, "step-time-chart", "waiting", 63);  // the slow rank waits for no other
    expect_bars_are_painted(view, "scaled-step-chart", "compute", 11);
    expect_bars_are_painted(view, "communication-chart", "volume", 4);
    const auto bars = shapes_of(view, "step-time-chart", "compute");
    const auto height = [&](std::size_t rank) {
      return bars[rank]["bottom"].get<double>() - bars[rank]["top"].get<double>();
    };
    EXPECT_NEAR(height(21) / height(0), 0.0212 / 0.0116, 0.02);
    EXPECT_THAT(shapes_of(view, "efficiency-chart", "efficiency-dot"), SizeIs(11));
    backgrounds.push_back(view.picture.at(2, 2));
  }
  ASSERT_THAT(backgrounds, SizeIs(2));
  EXPECT_GT(contrast(backgrounds[0], backgrounds[1]), 15);
}

// The colours are compared as people with each kind of colour blindness see them.
TEST_F(ReportBrowserTest, PartsOfAStepAreDistinctForColourBlindPeople) {
  ASSERT_THAT(views_, SizeIs(2));
  for (const auto& view : views_) {
    std::vector<Colour> parts;
    for (const auto* part : {"compute", "exposed", "waiting"})
      parts.push_back(parsed(shapes_of(view, "step-time-chart", part).at(0)["fill"]));
    for (const auto vision : {Vision::kNormal, Vision::kProtanopia, Vision::kDeuteranopia, Vision::kTritanopia}) {
      // 25 is about ten times the just noticeable difference.
      EXPECT_GT(difference(parts[0], parts[1], vision), 25)
          << view.seen["background"] << ", vision " << static_cast<int>(vision);
      EXPECT_GT(difference(parts[1], parts[2], vision), 25)
          << view.seen["background"] << ", vision " << static_cast<int>(vision);
      EXPECT_GT(difference(parts[0], parts[2], vision), 25)
          << view.seen["background"] << ", vision " << static_cast<int>(vision);
    }
  }
}

// From empty reports to 4,096 ranks: labels and tables are what becomes too wide.
TEST_F(ReportBrowserTest, PhoneShowsEverythingWithoutHorizontalScrolling) {
  const std::vector<sim::RunReport> reports = {full_report(4, 40), full_report(64, 400), full_report(4096, 1),
                                               diverged_report(),  hung_report(),        sweep_report(),
                                               {.title = "empty"}};
  const std::vector<std::size_t> num_charts = {5, 5, 5, 3, 1, 2, 0};
  std::vector<std::string> pages;
  for (const auto& report : reports) pages.push_back(sim::report_page(report));
  const auto views = browser_->open(pages, {.width = kPhone});
  ASSERT_EQ(views.size(), reports.size());
  for (std::size_t index = 0; index < views.size(); ++index) {
    const auto& seen = views[index].seen;
    EXPECT_EQ(seen["title"], reports[index].title);
    expect_sound(views[index], kPhone, reports[index].title);
    EXPECT_THAT(seen["sections"], SizeIs(8));
    EXPECT_THAT(seen["charts"], SizeIs(num_charts[index])) << reports[index].title;
    for (const auto& chart : seen["charts"]) EXPECT_THAT(chart["id"].get<std::string>(), EndsWith("-narrow-chart"));
  }
}

// Narrow screens get charts of their own with fewer bars, so these must be checked separately.
TEST_F(ReportBrowserTest, PhoneChartsArePainted) {
  const auto view = browser_->open(sim::report_page(full_report(1024, 20000)), {.width = kPhone, .has_picture = true});
  expect_sound(view, kPhone, "1024 ranks");
  expect_falling_line(view, "loss-narrow-chart");
  expect_bars_are_painted(view, "step-time-narrow-chart", "compute", 32);
  EXPECT_THAT(shapes_of(view, "step-time-narrow-chart", "slowest"), SizeIs(32));
  EXPECT_LT(view.seen["bottom"], view.picture.height) << "the picture does not show the full page";
}

TEST_F(ReportBrowserTest, ComparisonsFitEveryScreenInLightAndDark) {
  const std::vector<std::string> pages = {sim::comparison_page(equal_runs()), sim::comparison_page(different_runs())};
  for (const auto& options : {BrowserOptions{}, BrowserOptions{.is_dark = true}, BrowserOptions{.width = kPhone}}) {
    for (const auto& view : browser_->open(pages, options)) {
      expect_sound(view, options.width, "comparison");
      EXPECT_THAT(view.seen["sections"], SizeIs(3));
      EXPECT_THAT(view.seen["charts"], SizeIs(1));
    }
  }
}

TEST_F(ReportBrowserTest, ChecksFitEveryScreenInLightAndDark) {
  auto many = failed_checks();
  auto& samples = *many.checks.front().samples;
  samples.by_rank.assign(64, {0, 1});
  const std::vector<std::string> pages = {sim::check_page(failed_checks()), sim::check_page(many)};
  for (const auto& options : {BrowserOptions{}, BrowserOptions{.is_dark = true}, BrowserOptions{.width = kPhone}}) {
    for (const auto& view : browser_->open(pages, options)) {
      expect_sound(view, options.width, "checks");
      EXPECT_THAT(view.seen["sections"], SizeIs(4));
      EXPECT_THAT(view.seen["charts"], SizeIs(1));
    }
  }
}

// Names of tensors, messages of errors and paths come from users. None of them may become markup.
TEST_F(ReportBrowserTest, TextOfTheRunIsNotMarkup) {
  const auto report = hostile_report();
  const auto view = browser_->open(sim::report_page(report), {.width = kPhone});
  expect_sound(view, kPhone, "hostile");
  EXPECT_EQ(view.seen["title"], report.title);
  for (const auto& section : view.seen["sections"]) {
    const auto text = section["text"].get<std::string>();
    if (section["id"] == "diagnosis") {
      EXPECT_THAT(text, EndsWith(report.diagnosis));
    }
  }
}

// NaN cannot be drawn. Leaving it out would connect the points on both sides and hide the divergence.
TEST_F(ReportBrowserTest, NonFiniteLossesAreShownAsAGap) {
  const auto view = browser_->open(sim::report_page(diverged_report()), {.has_picture = true});
  expect_sound(view, 1100, "diverged");
  const auto gaps = shapes_of(view, "loss-chart", "gap");
  ASSERT_THAT(gaps, SizeIs(2));
  EXPECT_EQ(gaps[1]["name"], "steps 59 to 119: not finite");
  const auto inside = view.picture.at(middle(gaps[1], "left", "right"), middle(gaps[1], "top", "bottom"));
  const auto outside = view.picture.at(gaps[1]["left"].get<double>() - 8, gaps[1]["bottom"].get<double>() - 8);
  EXPECT_GT(difference(inside, outside, Vision::kNormal), 8);
}

// Tests the checks themselves: the page breaks each rule that the tests above check.
TEST_F(ReportBrowserTest, BrokenPageIsNoticed) {
  const auto view = browser_->open(
      "<!doctype html><svg viewBox='0 0 9 9'><title></title><desc></desc><rect x='nan'/><text "
      "y=9>a</text><text y=9>b</text></svg>"
      "<div style='width:600px'>wide</div><script>missing()</script></body>",
      {.width = kPhone});
  EXPECT_THAT(view.console, ::testing::Contains(HasSubstr("missing is not defined")));
  EXPECT_THAT(view.console, ::testing::Contains(HasSubstr("nan")));
  EXPECT_EQ(view.console.size(), 2u);
  EXPECT_GE(view.seen["scroll_width"], 600);
  EXPECT_EQ(view.seen["foreign"], 1);
  EXPECT_THAT(view.seen["charts"][0]["wrong_texts"].get<std::vector<std::string>>(),
              ::testing::Contains("a is over b"));
}

}  // namespace
}  // namespace accel::testing
