// The timeline in Chrome's trace format: tracks, slices and arrows as Perfetto expects them, and exact times.
#include "sim/report/timeline/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "reference/core/errors.hpp"
#include "sim/report/timeline/timeline_reader.hpp"
#include "tests/sim/report/timeline/sample_timelines.hpp"
#include "tests/sim/report/timeline/trace_rules.hpp"
#include "tests/support/property.hpp"

namespace accel::sim {
namespace {

using testing::any_timeline;
using testing::broken_rules;
using ::testing::ElementsAre;
using testing::events_of;
using testing::expect_property;
using ::testing::HasSubstr;
using testing::pick;
using testing::trace_text;
using testing::two_ranks;

std::vector<std::string> track_names(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& event : events_of(text, "M")) {
    if (event["name"] == "process_name" || event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  return names;
}

// Slices of one track must nest, and collectives in flight overlap, so each needs another track.
TEST(TimelineTest, ARankHasTracksForWorkAndForCollectivesInFlight) {
  const auto text = trace_text(two_ranks());
  EXPECT_THAT(broken_rules(text), ElementsAre());
  EXPECT_THAT(track_names(text),
              ElementsAre("virtual clock", "rank 0", "rank 0 collectives", "rank 0 collectives (2)", "rank 1"));
}

// Perfetto shows processes as groups of tracks. Collectives that overlap need a second track, as slices of one
// track must be nested.
TEST(TimelineTest, EachClockIsAProcessOfTheTrace) {
  auto timeline = two_ranks();
  for (auto& rank : timeline.ranks) rank.wall_clock = rank.virtual_clock;
  const auto text = trace_text(timeline);
  EXPECT_THAT(broken_rules(text), ElementsAre());
  EXPECT_THAT(track_names(text),
              ElementsAre("virtual clock", "rank 0", "rank 0 collectives", "rank 0 collectives (2)", "rank 1",
                          "wall clock", "rank 0", "rank 0 collectives", "rank 0 collectives (2)", "rank 1"));
}

// The format wants microseconds; the timeline is in seconds.
TEST(TimelineTest, ASliceHasItsCategoryAndArguments) {
  const auto slices = events_of(trace_text(two_ranks()), "X");
  ASSERT_EQ(slices.size(), 5u);
  const auto& wait = slices[1];
  EXPECT_EQ(wait["ts"], 10000);
  EXPECT_EQ(wait["dur"], 15000);
  EXPECT_EQ(wait["cat"], "wait");
  EXPECT_EQ(wait["args"], nlohmann::json({{"call", "world #3"}, {"late", 1}}));
  const auto& collective = slices[2];
  EXPECT_EQ(collective["name"], "all_reduce");
  EXPECT_EQ(collective["args"], nlohmann::json({{"call", "world #2"}, {"bytes", 4096}}));
}

// The arrow answers the question that a user has about a wait: which rank was late, and what was it doing?
TEST(TimelineTest, AnArrowLeadsFromTheLateRanksWorkToTheWait) {
  const auto text = trace_text(two_ranks());
  const auto tails = events_of(text, "s"), heads = events_of(text, "f"), slices = events_of(text, "X");
  ASSERT_EQ(tails.size(), 1u);
  ASSERT_EQ(heads.size(), 1u);
  EXPECT_EQ(tails[0]["tid"], slices[4]["tid"]);  // rank 1's backward
  EXPECT_EQ(tails[0]["ts"], 24999.998);          // just before it ends
  EXPECT_EQ(heads[0]["tid"], slices[1]["tid"]);  // rank 0's wait
  EXPECT_EQ(heads[0]["ts"], 24999.999);          // after the tail, although its track is written first
}

// Without a following slice the head must be bound to the enclosing slice ("bp": "e"), or Perfetto drops the arrow.
TEST(TimelineTest, AnArrowPointsToTheSliceAfterTheWait) {
  auto timeline = two_ranks();
  EXPECT_EQ(events_of(trace_text(timeline), "f").at(0).value("bp", ""), "e");
  timeline.ranks[0].virtual_clock.push_back({.name = "optimizer", .begin = 0.025, .end = 0.030});
  EXPECT_EQ(events_of(trace_text(timeline), "f").at(0).value("bp", ""), "");
}

// An arrow begins on the slice that encloses its time. A nested slice that ended long before and a later slice must
// not take it.
TEST(TimelineTest, TheTailIsOnTheSliceThatLastsUntilTheRelease) {
  auto timeline = two_ranks();
  timeline.ranks[1].virtual_clock.push_back(
      {.kind = SliceKind::kFault, .name = "slow_rank", .begin = 0.005, .end = 0.006});  // within backward
  timeline.ranks[1].virtual_clock.push_back({.name = "later", .begin = 0.025, .end = 0.5});
  const auto text = trace_text(timeline);
  EXPECT_THAT(broken_rules(text), ElementsAre());
  EXPECT_EQ(events_of(text, "s").at(0)["ts"], 24999.998);
}

// A wait that no other rank released, or a rank without a slice at that time, has nothing to point to.
TEST(TimelineTest, WithoutASourceThereIsNoArrow) {
  auto timeline = two_ranks();
  timeline.ranks[1].virtual_clock = {{.kind = SliceKind::kCompute, .name = "late", .begin = 0.5, .end = 0.6}};
  timeline.ranks[0].virtual_clock[0] = {
      .kind = SliceKind::kWait, .name = "own", .begin = 0, .end = 0.01, .released_by = 0};
  const auto text = trace_text(timeline);
  EXPECT_THAT(broken_rules(text), ElementsAre());
  EXPECT_TRUE(events_of(text, "s").empty());
}

// Microseconds as doubles lose nanoseconds after an hour, so times are written as integers with a decimal point.
TEST(TimelineTest, NanosecondsAreKept) {
  Timeline timeline{.ranks = std::vector<RankTimeline>(1)};
  timeline.ranks[0].virtual_clock = {{.name = "a", .begin = 123456.000000001, .end = 123456.000000051},
                                     {.name = "b", .begin = 200000, .end = 200000.5}};
  const auto text = trace_text(timeline);
  EXPECT_THAT(text, HasSubstr(R"("ts":123456000000.001,"dur":0.05,)"));
  EXPECT_THAT(text, HasSubstr(R"("ts":200000000000,"dur":500000,)"));
}

// Names come from users' programs. One of them must not make the whole file unreadable.
TEST(TimelineTest, NamesAreEscaped) {
  const std::string name = "a \"quoted\"\\ name\n<b>\x01, \xc3\xa9, \xff";
  Timeline timeline{.ranks = std::vector<RankTimeline>(1)};
  timeline.ranks[0].virtual_clock = {{.name = name, .begin = 0, .end = 1, .group = name, .sequence = 0}};
  const auto slices = events_of(trace_text(timeline), "X");
  const auto expected = name.substr(0, name.size() - 1) + "\xef\xbf\xbd";  // a byte that is not valid UTF-8 is replaced
  EXPECT_EQ(slices.at(0)["name"], expected);
  EXPECT_EQ(slices.at(0)["args"]["call"], expected + " #0");
}

TEST(TimelineTest, NothingToDrawIsAnEmptyTrace) {
  EXPECT_EQ(nlohmann::json::parse(trace_text({})),
            nlohmann::json({{"displayTimeUnit", "ms"}, {"traceEvents", nlohmann::json::array()}}));
}

// Such slices come from wrong clocks. Perfetto would reject or misplace them without saying which.
TEST(TimelineTest, EveryImpossibleSliceIsNamedBeforeAnythingIsWritten) {
  auto timeline = two_ranks();
  timeline.ranks[0].virtual_clock[0].end = std::numeric_limits<double>::quiet_NaN();
  timeline.ranks[0].virtual_clock[1].released_by = 2;
  timeline.ranks[1].virtual_clock[0].begin = 0.5;
  timeline.ranks[1].wall_clock = {{.name = "early", .begin = -1, .end = 0}};
  std::ostringstream out;
  try {
    write_timeline(out, timeline);
    FAIL() << "no error";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 slices cannot be drawn"));
    EXPECT_THAT(
        error.what(),
        HasSubstr("virtual clock, rank 0, 'backward' from 0 to nan s, released by -1: its times are not finite"));
    EXPECT_THAT(error.what(), HasSubstr("released by 2: released_by is not a rank"));
    EXPECT_THAT(error.what(),
                HasSubstr("rank 1, 'backward' from 0.5 to 0.025 s, released by -1: it ends before it begins"));
    EXPECT_THAT(error.what(), HasSubstr("wall clock, rank 1, 'early'"));
  }
  EXPECT_EQ(out.str(), "");
}

// A full disk would leave a truncated file that the user takes for the complete trace.
TEST(TimelineTest, AFailedStreamIsAnError) {
  std::ostringstream full;
  full.setstate(std::ios::badbit);
  EXPECT_THROW(write_timeline(full, two_ranks()), ConfigError);
}

TEST(TimelineTest, AnySlicesGiveAWellFormedTraceThatHoldsAllOfThem) {
  expect_property(500, [] {
    const auto timeline = any_timeline();
    const auto text = trace_text(timeline);
    RC_ASSERT(broken_rules(text) == std::vector<std::string>{});
    std::size_t num_slices = 0;
    for (const auto& rank : timeline.ranks) num_slices += rank.virtual_clock.size() + rank.wall_clock.size();
    RC_ASSERT(events_of(text, "X").size() == num_slices);
    RC_ASSERT(trace_text(timeline) == text);
  });
}

// Tests the checker itself: each change breaks one rule.
TEST(TraceRulesTest, BrokenTraceIsNoticed) {
  const auto good = nlohmann::json::parse(trace_text(two_ranks()));
  const auto broken_by = [&](const std::string& phase, auto&& change) {
    auto trace = good;
    auto& events = trace["traceEvents"];
    const auto event =
        std::find_if(events.begin(), events.end(), [&](const auto& candidate) { return candidate["ph"] == phase; });
    change(events, event);
    return broken_rules(trace.dump());
  };
  EXPECT_THAT(broken_rules(good.dump()), ElementsAre());
  EXPECT_THAT(broken_by("f", [](auto& events, auto event) { events.erase(event); }),
              ElementsAre(HasSubstr("not one tail and one head")));
  EXPECT_THAT(broken_by("f", [](auto&, auto event) { event->erase("bp"); }),
              ElementsAre(HasSubstr("points to no slice")));
  EXPECT_THAT(broken_by("f", [](auto&, auto event) { (*event)["ts"] = 24999.998; }),
              ElementsAre(HasSubstr("its head is not after its tail")));
  EXPECT_THAT(broken_by("s", [](auto&, auto event) { (*event)["ts"] = 25000; }),
              ::testing::Contains(HasSubstr("stands on no slice")));
  EXPECT_THAT(broken_by("X", [](auto&, auto event) { (*event)["dur"] = 10001; }),
              ElementsAre(HasSubstr("does not lie within")));
  EXPECT_THAT(broken_by("X", [](auto&, auto event) { (*event)["ts"] = 10001; }),
              ::testing::Contains(HasSubstr("earlier than the event before")));
  EXPECT_THAT(broken_by("X", [](auto&, auto event) { (*event)["ts"] = nullptr; }),
              ::testing::Contains(HasSubstr("a time that is none")));
  EXPECT_THAT(broken_by("M", [](auto& events, auto event) { events.erase(event); }),
              ::testing::Contains(HasSubstr("its process has no name")));
}

// In the order of their begins; a time is exact to the nanosecond that is written. Invalid UTF-8 is replaced.
TEST(TimelineTest, WhatIsWrittenIsRead) {
  expect_property(100, [] {
    const auto timeline = any_timeline();
    std::ostringstream text;
    write_timeline(text, timeline, pick(0, 2) == 0 ? TimelineFormat::kJson : TimelineFormat::kTrackEvent);
    const auto again = read_timeline(text.str());
    const auto valid = [](std::string name) {
      if (name.ends_with('\xff')) name.replace(name.size() - 1, 1, "\uFFFD");
      return name;
    };
    const auto described = [&](const std::vector<Slice>& slices) {
      std::vector<std::string> lines;
      for (const auto& slice : slices) {
        lines.push_back(fmt::format("{} {} {:.9f} {:.9f} {} {} {}", static_cast<int>(slice.kind), valid(slice.name),
                                    slice.begin, slice.end, slice.sequence < 0 ? "" : valid(slice.group),
                                    std::max<std::int64_t>(slice.sequence, -1), slice.bytes));
      }
      std::sort(lines.begin(), lines.end());
      return lines;
    };
    for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      const auto read = rank < again.ranks.size() ? again.ranks[rank] : RankTimeline();
      RC_ASSERT(described(read.virtual_clock) == described(timeline.ranks[rank].virtual_clock));
      RC_ASSERT(described(read.wall_clock) == described(timeline.ranks[rank].wall_clock));
    }
  });
}

TEST(TimelineTest, APartOfATraceIsNoTimeline) {
  std::ostringstream text;
  write_timeline(text, {.ranks = {{.wall_clock = {{.name = "forward", .begin = 0, .end = 1}}}}},
                 TimelineFormat::kTrackEvent);
  const auto trace = text.str();
  EXPECT_EQ(read_timeline(trace).ranks.size(), 1U);
  for (std::size_t size = 1; size < trace.size(); ++size) {
    try {
      EXPECT_EQ(read_timeline(trace.substr(0, size)).ranks.size(), 0U);  // a part without slices
    } catch (const ConfigError&) {
    }
  }
}

TEST(TimelineTest, AnotherFileIsNoTimeline) {
  for (const auto* text :
       {"", "{}", "[1]", R"({"traceEvents":[{"ph":"X","pid":1,"tid":1,"name":"a"}]})", "\n", "\n\x05\x08"})
    EXPECT_THROW((void)read_timeline(text), ConfigError) << text;
}

}  // namespace
}  // namespace accel::sim
