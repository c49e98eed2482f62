// The report page as text: self-contained, well-formed, deterministic, and with every number also in a table. The
// browser test checks how it looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "reference/core/errors.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/run_report.hpp"
#include "tests/sim/report/sample_reports.hpp"

namespace accel::sim {
namespace {

using testing::diverged_report;
using ::testing::ElementsAre;
using testing::full_report;
using ::testing::HasSubstr;
using testing::hostile_report;
using testing::hung_report;
using ::testing::Not;
using testing::sweep_report;

std::vector<RunReport> all_samples() {
  return {full_report(4, 40), full_report(64, 400), full_report(1024, 5000), diverged_report(),
          hung_report(),      sweep_report(),       hostile_report(),        RunReport{}};
}

// Returns the texts between `open` and `close`.
std::vector<std::string> between(const std::string& text, const std::string& open, const std::string& close) {
  std::vector<std::string> found;
  for (auto begin = text.find(open); begin != std::string::npos; begin = text.find(open, begin)) {
    begin += open.size();
    found.push_back(text.substr(begin, text.find(close, begin) - begin));
  }
  return found;
}

void expect_coordinates(const std::string& page, const std::vector<std::string>& attributes, double most) {
  for (const auto& attribute : attributes) {
    for (const auto& value : between(page, " " + attribute + "=\"", "\"")) {
      EXPECT_TRUE(std::stod(value) >= -1 && std::stod(value) <= most) << attribute << " " << value;
    }
  }
}

// Returns the text between the tags of a section.
std::string section_of(const std::string& page, const std::string& id) {
  const auto begin = page.find("<section id=\"" + id + "\"");
  return begin == std::string::npos ? "" : page.substr(begin, page.find("</section>", begin) - begin);
}

// A report is mailed and archived as one file, so it must not load anything.
TEST(ReportPageTest, ThePageHasNoExternalContent) {
  for (const auto& report : all_samples()) {
    const auto page = report_page(report);
    for (const auto* forbidden :
         {"http:", "https:", "<script", "<link", "<iframe", "<img", "src=", "href", "url(", "@import"}) {
      if (report.title == hostile_report().title && std::string(forbidden) == "src=") continue;  // its text contains it
      EXPECT_THAT(page, Not(HasSubstr(forbidden))) << report.title;
    }
  }
}

// A NaN or a point outside of the picture is invisible: the chart would look complete but lie.
TEST(ReportPageTest, EveryCoordinateIsANumberWithinThePicture) {
  for (const auto& report : all_samples()) {
    const auto page = report_page(report);
    expect_coordinates(page, {"x", "x1", "x2", "cx", "width"}, 921);
    // The picture is 920 x 320, and strokes may exceed it by one unit.
    expect_coordinates(page, {"y", "y1", "y2", "cy", "height"}, 321);
    for (const auto& points : between(page, " points=\"", "\"")) {
      std::istringstream in(points);
      for (std::string x, y; std::getline(in, x, ',') && std::getline(in, y, ' ');) {
        EXPECT_TRUE(std::stod(x) >= 0 && std::stod(x) <= 920 && std::stod(y) >= 0 && std::stod(y) <= 320)
            << x << ", " << y;
      }
    }
  }
}

// Pages are compared and stored in version control, so nothing such as the date or an address may slip in.
TEST(ReportPageTest, SameReportIsTheSameBytes) {
  for (const auto& report : all_samples()) EXPECT_EQ(report_page(report), report_page(report));
}

// Links within the page and labels of charts refer to ids; with two equal ids, one of them points to the wrong
// place.
TEST(ReportPageTest, EveryIdIsUnique) {
  for (const auto& report : all_samples()) {
    auto ids = between(report_page(report), " id=\"", "\"");
    EXPECT_GE(ids.size(), 8u);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << report.title;
  }
}

// Titles and messages come from users' programs and files, and the page may be published.
TEST(ReportPageTest, TextIsEscaped) {
  const auto page = report_page(hostile_report());
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(between(page, "&lt;script&gt;console.", "(").size(),
              ::testing::Ge(8u));  // title twice, fact twice, faults, findings, diagnosis, ...
  EXPECT_EQ(report::escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

// An empty chart looks like a run without loss or time; the text must say that nothing was recorded.
TEST(ReportPageTest, MissingDataIsStatedInALine) {
  const auto page = report_page({.title = "nothing"});
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  EXPECT_THAT(page, Not(HasSubstr("<table")));
  EXPECT_THAT(section_of(page, "diagnosis"), HasSubstr("the run had no hang"));
  EXPECT_THAT(section_of(page, "findings"), HasSubstr("None."));
  EXPECT_THAT(section_of(page, "faults"), HasSubstr("None were injected."));
  EXPECT_THAT(section_of(page, "loss"), HasSubstr("No loss was recorded."));
  EXPECT_THAT(section_of(page, "step-time"), HasSubstr("No step times were measured."));
  EXPECT_THAT(section_of(page, "communication"), HasSubstr("No communication was recorded."));
  EXPECT_THAT(section_of(page, "scaling"), HasSubstr("No sweep over numbers of ranks was made."));
}

// The first line of the page is what most readers look at.
TEST(ReportPageTest, VerdictFollowsDiagnosisAndFindings) {
  EXPECT_THAT(report_page({}), HasSubstr("✓ completed"));
  EXPECT_THAT(report_page({.findings = {"a", "b"}}), HasSubstr("! completed with 2 findings"));
  EXPECT_THAT(report_page({.findings = {"a"}, .diagnosis = "hang"}), HasSubstr("✕ failed"));
}

TEST(ReportPageTest, SlowRankIsNamed) {
  EXPECT_THAT(section_of(report_page(full_report(1024, 10)), "step-time"),
              HasSubstr("Rank 341 computes longest: 21.2 ms, 1.70 times the median."));
}

// A logarithmic axis has no place for them, so they appear as marks with a text.
TEST(ReportPageTest, LossesThatAreNotFiniteAreCountedAndMarked) {
  const auto loss = section_of(report_page(diverged_report()), "loss");
  EXPECT_THAT(loss, HasSubstr("62 of 120 losses are not finite, the first at step 40."));
  EXPECT_THAT(loss, HasSubstr("<title>step 40: NaN</title>"));
  EXPECT_THAT(loss, HasSubstr("<title>steps 59 to 119: not finite</title>"));
  EXPECT_THAT(loss, HasSubstr("loss (logarithmic)"));
}

// A gap per loss would make a page of several megabytes.
TEST(ReportPageTest, ManyBrokenLossesStayAFewKilobytes) {
  RunReport report;
  for (int step = 0; step < 200000; ++step)
    report.losses.push_back(step % 2 == 0 ? 1.0 + step % 7 : std::numeric_limits<double>::quiet_NaN());
  EXPECT_LT(report_page(report).size(), 200'000u);
}

// For readers who cannot see the charts, and for those who need exact values.
TEST(ReportPageTest, TablesHoldTheNumbersOfTheCharts) {
  RunReport report;
  report.ranks = {{0.010, 0.002, 0.003}};
  report.volumes = {{"barrier", 3, 0, 0.5}, {"all_reduce", 1200, 123456789, 1.5}};
  report.scaling = {{.ranks = 16, .step_seconds = 0.02, .efficiency = 0.5, .samples_per_second = 1600},
                    {.ranks = 1, .step_seconds = 0.01, .efficiency = 1, .samples_per_second = 100}};
  const auto page = report_page(report);
  const auto row = [&](const std::string& id) {
    return between(section_of(page, id), "<tr><th scope=\"row\">", "</tr>");
  };
  EXPECT_THAT(row("step-time"), ElementsAre("0<td>10 ms<td>2 ms<td>3 ms<td>15 ms"));
  EXPECT_THAT(row("communication"),
              ElementsAre("all_reduce<td>1,200<td>123,456,789<td>1.5 s", "barrier<td>3<td>0<td>500 ms"));
  EXPECT_THAT(row("scaling"),
              ElementsAre("1<td>10 ms<td>100 %<td>0 s<td>0 s<td>100", "16<td>20 ms<td>50 %<td>0 s<td>0 s<td>1,600"));
}

// Such numbers are errors of the program that made the report, and must not be drawn.
TEST(ReportPageTest, EveryImpossibleNumberIsNamed) {
  RunReport report;
  report.ranks = {{0.01, 0.0, 0.0}, {-1, 0.0, std::numeric_limits<double>::quiet_NaN()}};
  report.volumes = {{"all_reduce", 1, -5, 0}};
  report.scaling = {{.ranks = 0, .step_seconds = 1, .efficiency = std::numeric_limits<double>::infinity()}};
  try {
    (void)report_page(report);
    FAIL() << "no error";
    // The message lists every impossible number and none of the good ones.
  } catch (const ArgumentError& error) {
    for (const auto* problem :
         {"ranks[1].compute: expected a finite number of 0 or more, got -1", "ranks[1].straggler_wait",
          "volumes, all_reduce: bytes", "scaling[0].ranks", "scaling[0].efficiency"}) {
      EXPECT_THAT(error.what(), HasSubstr(problem));
    }
    EXPECT_THAT(error.what(), Not(HasSubstr("ranks[0]")));
  }
}

TEST(SvgTest, CoordinateThatIsNoNumberIsAnError) {
  report::Svg svg({.id = "a", .title = "a", .description = "a", .width = 10, .height = 10});
  EXPECT_THROW(svg.line({0, 0}, {std::numeric_limits<double>::quiet_NaN(), 1}, "grid"), InternalError);
}

}  // namespace
}  // namespace accel::sim
