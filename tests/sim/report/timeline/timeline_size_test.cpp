// The trace of a long run must be small, quick to write and well-formed, because Perfetto loads it in a browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "tests/sim/report/timeline/trace_rules.hpp"

namespace accel::sim {
namespace {

using testing::broken_rules;
using testing::trace_text;

// A training run: forward, backward, two buckets in flight, a wait that rank (step mod ranks) ends, and the
// optimizer.
Timeline long_run(int num_ranks, int num_steps) {
  Timeline timeline{.ranks = std::vector<RankTimeline>(static_cast<std::size_t>(num_ranks))};
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto& clock = timeline.ranks[static_cast<std::size_t>(rank)].virtual_clock;
    for (int step = 0; step < num_steps; ++step) {
      // Times with many digits, as measured ones have; round numbers would be shorter than real traces.
      const double start = step * 0.0912345678, late = start + 0.080123456, done = start + 0.0901234567 + rank * 1e-9;
      const double forward = start + 0.0201234567 + rank * 1.7e-5,
                   backward = step % num_ranks == rank ? late : start + 0.0601234567 + rank * 1.3e-5;
      clock.push_back({.name = "forward", .begin = start, .end = forward});
      clock.push_back({.name = "backward", .begin = forward, .end = backward});
      clock.push_back({.kind = SliceKind::kCollective,
                       .name = "all_reduce",
                       .begin = forward + 0.01,
                       .end = late,
                       .group = "world",
                       .sequence = 2 * step,
                       .bytes = 1048576});
      clock.push_back({.kind = SliceKind::kCollective,
                       .name = "all_reduce",
                       .begin = backward,
                       .end = done,
                       .group = "world",
                       .sequence = 2 * step + 1,
                       .bytes = 26214400});
      clock.push_back({.kind = SliceKind::kWait,
                       .name = "all_reduce",
                       .begin = backward,
                       .end = late,
                       .group = "world",
                       .sequence = 2 * step,
                       .released_by = step % num_ranks});
      clock.push_back({.name = "optimizer", .begin = done, .end = start + 0.0912});
    }
  }
  return timeline;
}

TEST(TimelineSizeTest, ThousandStepsOf64RanksAreUnder50MegabytesWithinSeconds) {
  const auto timeline = long_run(64, 1000);
  const auto started = std::clock();  // CPU time, because other tests run at the same time
  const auto text = trace_text(timeline);
  const auto seconds = static_cast<double>(std::clock() - started) / CLOCKS_PER_SEC;
  RecordProperty("megabytes", std::to_string(static_cast<double>(text.size()) / 1e6));
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(text.size(), 50'000'000u);
  EXPECT_LT(seconds, 5);
}

// Every slice has two events, but names and categories are interned and times are binary.
TEST(TimelineSizeTest, TrackEventsAreHalfAsLarge) {
  const auto timeline = long_run(64, 100);
  EXPECT_LT(2 * trace_text(timeline, TimelineFormat::kTrackEvent).size(), trace_text(timeline).size());
}

TEST(TimelineSizeTest, LongRunIsWellFormed) {
  EXPECT_THAT(broken_rules(trace_text(long_run(8, 100))), ::testing::IsEmpty());
}

}  // namespace
}  // namespace accel::sim
