// Turns a timeline into a trace: checks the slices, plans tracks and arrows (timeline_plan.cpp) and writes them
// (json_trace_writer.cpp, track_event_writer.cpp).
#include "sim/report/timeline/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "reference/core/errors.hpp"
#include "sim/report/timeline/trace_writer.hpp"

namespace accel::sim {
namespace {

using report::Arrow;
using report::TraceWriter;
using Clock = std::vector<Slice> RankTimeline::*;

// The virtual clock comes first: it is the one that a user of a network model looks at.
struct NamedClock {
  const char* name;
  Clock slices;
};
constexpr NamedClock kClocks[] = {{"virtual clock", &RankTimeline::virtual_clock},
                                  {"wall clock", &RankTimeline::wall_clock}};

// Checks what would make a trace that viewers reject or misread without an error. Returns null for a valid slice.
const char* problem_of(const Slice& slice, std::size_t num_ranks) {
  constexpr double kLatest = 9.2e9;  // nanoseconds fit into 64 bits
  if (!std::isfinite(slice.begin) || !std::isfinite(slice.end))
    return "its times are not finite; expected finite times";
  if (slice.begin < 0 || slice.end > kLatest) return "its times are not between 0 and 9.2e9 seconds";
  if (slice.end < slice.begin) return "it ends before it begins; expected an end at or after its begin";
  if (slice.released_by < -1 || slice.released_by >= static_cast<int>(num_ranks))
    return "released_by is not a rank of the timeline; expected such a rank, or -1 for none";
  return nullptr;
}

// A faulty producer usually has thousands of invalid slices, so only the first kShown are listed.
void check(const Timeline& timeline) {
  constexpr int kShown = 20;
  std::string problems;
  int num_problems = 0;
  for (const auto& clock : kClocks) {
    for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      for (const auto& slice : timeline.ranks[rank].*clock.slices) {
        const auto* problem = problem_of(slice, timeline.ranks.size());
        if (problem == nullptr || ++num_problems > kShown) continue;
        problems += fmt::format("\n  {}, rank {}, '{}' from {} to {} s, released by {}: {}", clock.name, rank,
                                slice.name, slice.begin, slice.end, slice.released_by, problem);
      }
    }
  }
  check_argument(num_problems == 0, "timeline: {} slices cannot be drawn; correct them{}:{}", num_problems,
                 num_problems > kShown ? "; the first 20 are" : "", problems);
}

// Groups the ends of arrows by rank and sorts them by time. Ids are unique over both clocks: a viewer connects
// ends by id alone.
std::vector<std::vector<report::Mark>> marks_of(const std::vector<Arrow>& arrows, std::size_t num_ranks,
                                                std::int64_t first_id) {
  std::vector<std::vector<report::Mark>> marks(num_ranks);
  auto id = first_id;
  for (const auto& [from, to] : arrows) {
    marks[static_cast<std::size_t>(from.rank)].push_back({from.slice, from.time, id, /*is_tail=*/true});
    marks[static_cast<std::size_t>(to.rank)].push_back({to.slice, to.time, id, /*is_tail=*/false});
    ++id;
  }
  for (auto& rank : marks)
    std::stable_sort(rank.begin(), rank.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return marks;
}

// Activities may nest on a track (a phase within a phase); collectives in flight overlap freely and never nest.
void write_tracks(TraceWriter& writer, const std::string& name, bool in_flight, const std::vector<Slice>& slices,
                  const std::vector<report::Mark>& marks) {
  std::vector<std::size_t> chosen;
  std::vector<report::Span> spans;
  for (std::size_t index = 0; index < slices.size(); ++index) {
    if (report::is_in_flight(slices[index]) != in_flight) continue;
    chosen.push_back(index);
    spans.push_back(report::span_of(slices[index]));
  }
  int number = 0;
  for (auto track : report::plan_tracks(spans, /*may_nest=*/!in_flight)) {
    for (auto& index : track) index = chosen[index];
    ++number;
    writer.track(number == 1 ? name : fmt::format("{} ({})", name, number), slices, track, marks);
  }
}

// A clock without slices is left out, so that a run without a network has no empty process.
void write_clock(TraceWriter& writer, const Timeline& timeline, const NamedClock& clock, std::int64_t& next_arrow) {
  std::vector<const std::vector<Slice>*> ranks;
  for (const auto& rank : timeline.ranks) ranks.push_back(&(rank.*clock.slices));
  if (std::all_of(ranks.begin(), ranks.end(), [](const auto* slices) { return slices->empty(); })) return;
  const auto arrows = report::plan_arrows(ranks);
  const auto marks = marks_of(arrows, ranks.size(), next_arrow);
  next_arrow += static_cast<std::int64_t>(arrows.size());
  writer.process(clock.name);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    write_tracks(writer, fmt::format("rank {}", rank), /*in_flight=*/false, *ranks[rank], marks[rank]);
    write_tracks(writer, fmt::format("rank {} collectives", rank), /*in_flight=*/true, *ranks[rank], marks[rank]);
  }
}

}  // namespace

TimelineFormat timeline_format_of(const std::string& file) {
  return file.ends_with(".json") ? TimelineFormat::kJson : TimelineFormat::kTrackEvent;
}

void write_timeline(std::ostream& out, const Timeline& timeline, TimelineFormat format) {
  check(timeline);
  const auto writer =
      format == TimelineFormat::kJson ? report::make_json_writer(out) : report::make_track_event_writer(out);
  std::int64_t next_arrow = 0;
  for (const auto& clock : kClocks) write_clock(*writer, timeline, clock, next_arrow);
  writer->finish();
  out.flush();
  check_config(out.good(), "timeline: the file could not be written completely; check the free disk space");
}

}  // namespace accel::sim
