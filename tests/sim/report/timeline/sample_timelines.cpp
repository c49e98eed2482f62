#include "tests/sim/report/timeline/sample_timelines.hpp"

#include <string>

#include "tests/support/property.hpp"

namespace accel::testing {

using sim::RankTimeline;
using sim::SliceKind;
using sim::Timeline;

sim::Timeline two_ranks() {
  Timeline timeline{.ranks = std::vector<RankTimeline>(2)};
  timeline.ranks[0].virtual_clock = {{.kind = SliceKind::kCompute, .name = "backward", .begin = 0, .end = 0.010},
                                     {.kind = SliceKind::kWait,
                                      .name = "wait",
                                      .begin = 0.010,
                                      .end = 0.025,
                                      .group = "world",
                                      .sequence = 3,
                                      .released_by = 1},
                                     {.kind = SliceKind::kCollective,
                                      .name = "all_reduce",
                                      .begin = 0.004,
                                      .end = 0.025,
                                      .group = "world",
                                      .sequence = 2,
                                      .bytes = 4096},
                                     {.kind = SliceKind::kCollective,
                                      .name = "all_reduce",
                                      .begin = 0.009,
                                      .end = 0.030,
                                      .group = "world",
                                      .sequence = 3,
                                      .bytes = 512}};
  timeline.ranks[1].virtual_clock = {{.kind = SliceKind::kCompute, .name = "backward", .begin = 0, .end = 0.025}};
  return timeline;
}

sim::Timeline any_timeline() {
  const std::string names[] = {"slice", "all_reduce", "", "a \"quoted\"\n name \xff"};
  const auto any_name = [&] { return names[pick(0, 4)]; };
  Timeline timeline{.ranks = std::vector<RankTimeline>(static_cast<std::size_t>(pick(1, 5)))};
  for (auto& rank : timeline.ranks) {
    for (auto* clock : {&rank.virtual_clock, &rank.wall_clock}) {
      for (auto count = pick(0, 12); count > 0; --count) {
        const auto begin = pick(0, 20), length = pick(0, 8);
        clock->push_back({.kind = static_cast<SliceKind>(pick(0, 4)),
                          .name = any_name(),
                          .begin = begin * 1e-9,
                          .end = (begin + length) * 1e-9,
                          .group = any_name(),
                          .sequence = pick(-1, 3),
                          .bytes = pick(0, 3) * 1000,
                          .released_by = pick(-1, static_cast<int>(timeline.ranks.size()))});
      }
    }
  }
  return timeline;
}

}  // namespace accel::testing
