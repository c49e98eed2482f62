// The timeline as Perfetto's TrackEvents, decoded by a reader that is written only for these tests and compared with
// the same timeline in Chrome's format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/report/timeline/timeline.hpp"
#include "tests/sim/report/timeline/sample_timelines.hpp"
#include "tests/sim/report/timeline/trace_rules.hpp"
#include "tests/sim/report/timeline/track_event_reader.hpp"
#include "tests/support/property.hpp"

namespace accel::sim {
namespace {

using testing::any_timeline;
using testing::events_in_nanoseconds;
using testing::expect_property;
using testing::read_track_events;
using testing::trace_text;
using testing::two_ranks;

TEST(TrackEventTest, OnlyTheSuffixJsonMeansChromesFormat) {
  EXPECT_EQ(timeline_format_of("runs.json/a.pftrace"), TimelineFormat::kTrackEvent);
  EXPECT_EQ(timeline_format_of("a.perfetto-trace"), TimelineFormat::kTrackEvent);
  EXPECT_EQ(timeline_format_of("json"), TimelineFormat::kTrackEvent);
  EXPECT_EQ(timeline_format_of("runs/a.json"), TimelineFormat::kJson);
}

// The first packet begins a sequence; without it Perfetto skips every event that refers to an interned name.
TEST(TrackEventTest, ATimelineWithoutSlicesIsAValidTrace) {
  const auto bytes = trace_text({}, TimelineFormat::kTrackEvent);
  EXPECT_FALSE(bytes.empty());
  EXPECT_TRUE(read_track_events(bytes).empty());
}

TEST(TrackEventTest, TheWaitOfTwoRanksHasItsCategoryArgumentsAndArrow) {
  const auto events = read_track_events(trace_text(two_ranks(), TimelineFormat::kTrackEvent));
  const nlohmann::json wait = {
      {"ph", "X"},       {"pid", 1},      {"tid", 11},      {"ts", 10000000},
      {"dur", 15000000}, {"cat", "wait"}, {"name", "wait"}, {"args", {{"call", "world #3"}, {"late", 1}}}};
  const nlohmann::json head = {{"ph", "f"}, {"pid", 1}, {"tid", 11}, {"ts", 24999999}, {"id", 0}, {"name", "late"}};
  EXPECT_THAT(events, ::testing::IsSupersetOf({wait, head}));
}

// Names, tracks, slices, arguments and arrows, in the same order. The reader throws for slices that do not nest.
TEST(TrackEventTest, AnyTimelineHasTheEventsOfChromesFormat) {
  expect_property(500, [] {
    const auto timeline = any_timeline();
    const auto bytes = trace_text(timeline, TimelineFormat::kTrackEvent);
    RC_ASSERT(read_track_events(bytes) == events_in_nanoseconds(trace_text(timeline)));
    RC_ASSERT(trace_text(timeline, TimelineFormat::kTrackEvent) == bytes);
  });
}

// The latest time that a timeline may hold has 63 bits of nanoseconds; the buffer is flushed several times.
TEST(TrackEventTest, ALongTraceKeepsNanoseconds) {
  Timeline timeline{.ranks = std::vector<RankTimeline>(1)};
  timeline.ranks[0].virtual_clock.assign(100000, {.name = "a", .begin = 123456.000000001, .end = 123456.000000051});
  timeline.ranks[0].virtual_clock.push_back({.name = "b", .begin = 9.2e9, .end = 9.2e9});
  const auto events = read_track_events(trace_text(timeline, TimelineFormat::kTrackEvent));
  ASSERT_GT(events.size(), 100000U);
  EXPECT_EQ(events[4]["ts"], 123456000000001);
  EXPECT_EQ(events[4]["dur"], 50);
  EXPECT_EQ(events.back()["ts"], 9200000000000000000);
}

}  // namespace
}  // namespace accel::sim
