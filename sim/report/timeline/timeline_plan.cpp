// Plans tracks and arrows so that viewers show them: a trace format has no notion of overlapping slices on one
// track, and viewers drop or misplace what breaks its rules.
#include "sim/report/timeline/timeline_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

namespace accel::sim::report {
namespace {

struct OpenTrack {
  Track slices;
  std::vector<Nanoseconds> ends;  // ends of the slices that the next one may lie within, innermost last
};

// Returns whether a span fits on the track after its present slices. Spans arrive sorted by begin, so slices
// that have ended can be removed for good.
bool takes(OpenTrack& track, const Span& span, bool may_nest) {
  while (!track.ends.empty() && track.ends.back() <= span.begin) track.ends.pop_back();
  return track.ends.empty() || (may_nest && span.end <= track.ends.back());
}

bool has_duration(const Slice& slice) {
  const auto span = span_of(slice);
  return span.begin < span.end;
}

// A rank's activities, as candidates for an arrow's tail. Slices without duration are excluded: a viewer cannot
// attach an arrow to them.
struct Activities {
  std::vector<Nanoseconds> begins;       // sorted
  std::vector<std::size_t> ending_last;  // of the slices begun so far, the one that ends last
};

Activities activities_of(const std::vector<Slice>& slices) {
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < slices.size(); ++index) {
    if (!is_in_flight(slices[index]) && has_duration(slices[index])) order.push_back(index);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return slices[a].begin < slices[b].begin; });
  Activities deeds;
  for (const auto index : order) {
    const bool ends_last = deeds.ending_last.empty() || slices[index].end >= slices[deeds.ending_last.back()].end;
    deeds.begins.push_back(span_of(slices[index]).begin);
    deeds.ending_last.push_back(ends_last ? index : deeds.ending_last.back());
  }
  return deeds;
}

// Both ends lie just before their slices end, where no other slice has begun, and the tail before the head: a
// viewer reads events by time and drops a head that precedes its tail.
std::optional<ArrowEnd> tail_of(int rank, const std::vector<Slice>& slices, const Activities& deeds,
                                Nanoseconds release) {
  const auto begun = std::lower_bound(deeds.begins.begin(), deeds.begins.end(), release) - deeds.begins.begin();
  if (begun == 0) return std::nullopt;
  const auto slice = deeds.ending_last[static_cast<std::size_t>(begun - 1)];
  const auto span = span_of(slices[slice]);
  return ArrowEnd{rank, slice, std::max(span.begin, std::min(span.end, release) - 2)};
}

// Appends the ends of open slices, innermost first, that have ended at `time`.
void end_slices(const std::vector<Slice>& slices, Nanoseconds time, Track& open, std::vector<TrackEvent>& events) {
  while (!open.empty() && span_of(slices[open.back()]).end <= time) {
    events.push_back({TrackEventKind::kEnd, open.back(), span_of(slices[open.back()]).end});
    open.pop_back();
  }
}

bool has_arrow(const Slice& slice, int rank) {
  return slice.kind == SliceKind::kWait && slice.released_by >= 0 && slice.released_by != rank && has_duration(slice);
}

}  // namespace

Span span_of(const Slice& slice) { return {std::llround(slice.begin * 1e9), std::llround(slice.end * 1e9)}; }

// First fit. The number of tracks is small (buckets in flight), so a linear search is enough.
std::vector<Track> plan_tracks(const std::vector<Span>& spans, bool may_nest) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    // Longer spans first, so that an outer slice is placed before the slices inside it.
    return spans[a].begin != spans[b].begin ? spans[a].begin < spans[b].begin : spans[a].end > spans[b].end;
  });
  std::vector<OpenTrack> open;
  for (const auto index : order) {
    auto track = std::find_if(open.begin(), open.end(),
                              [&](OpenTrack& candidate) { return takes(candidate, spans[index], may_nest); });
    if (track == open.end()) track = open.emplace(open.end());
    track->slices.push_back(index);
    track->ends.push_back(spans[index].end);
  }
  std::vector<Track> tracks;
  for (auto& track : open) tracks.push_back(std::move(track.slices));
  return tracks;
}

std::vector<TrackEvent> plan_events(const std::vector<Slice>& slices, const Track& track,
                                    const std::vector<Mark>& marks) {
  constexpr auto kAll = std::numeric_limits<Nanoseconds>::max();
  const std::unordered_set<std::size_t> here(track.begin(), track.end());
  std::vector<TrackEvent> events;
  Track open;
  std::size_t next = 0;
  const auto add_marks = [&](Nanoseconds before) {
    for (; next < marks.size() && marks[next].time < before; ++next) {
      if (!here.contains(marks[next].slice)) continue;
      end_slices(slices, marks[next].time, open, events);
      events.push_back({TrackEventKind::kMark, next, marks[next].time});
    }
  };
  for (const auto index : track) {
    const auto begin = span_of(slices[index]).begin;
    add_marks(begin);
    end_slices(slices, begin, open, events);
    events.push_back({TrackEventKind::kBegin, index, begin});
    open.push_back(index);
  }
  add_marks(kAll);
  end_slices(slices, kAll, open, events);
  return events;
}

std::vector<Arrow> plan_arrows(const std::vector<const std::vector<Slice>*>& ranks) {
  std::vector<Activities> deeds;
  for (const auto* slices : ranks) deeds.push_back(activities_of(*slices));
  std::vector<Arrow> arrows;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const auto& slices = *ranks[static_cast<std::size_t>(rank)];
    for (std::size_t index = 0; index < slices.size(); ++index) {
      if (!has_arrow(slices[index], rank)) continue;
      const auto wait = span_of(slices[index]);
      const auto by = static_cast<std::size_t>(slices[index].released_by);
      const auto tail = tail_of(slices[index].released_by, *ranks[by], deeds[by], wait.end);
      // The head needs a later time than the tail; a wait of 2 ns or less has no room for both.
      if (tail && tail->time < wait.end - 1) arrows.push_back({*tail, {rank, index, wait.end - 1}});
    }
  }
  return arrows;
}

}  // namespace accel::sim::report
