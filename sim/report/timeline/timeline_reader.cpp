#include "sim/report/timeline/timeline_reader.hpp"

#include <charconv>
#include <optional>
#include <string>

#include "reference/core/errors.hpp"
#include "sim/report/timeline/trace_reader.hpp"

namespace accel::sim {
namespace {

struct RankTrack {
  int rank = 0;
  bool is_in_flight = false;
};

// "rank 3", "rank 3 (2)", "rank 3 collectives", "rank 3 collectives (2)".
std::optional<RankTrack> track_named(std::string_view name) {
  constexpr std::string_view kPrefix = "rank ";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  RankTrack track;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), track.rank);
  if (problem != std::errc() || track.rank < 0 || track.rank >= 1 << 20) return std::nullopt;
  track.is_in_flight = std::string_view(end, name.data() + name.size() - end).starts_with(" collectives");
  return track;
}

Slice slice_of(const report::TraceSlice& read, bool is_in_flight) {
  Slice slice{.kind = read.category == "wait"    ? SliceKind::kWait
                      : read.category == "fault" ? SliceKind::kFault
                      : is_in_flight             ? SliceKind::kCollective
                                                 : SliceKind::kCompute,
              .name = read.name,
              .begin = read.begin,
              .end = read.end,
              .bytes = read.bytes};
  if (const auto at = read.call.rfind(" #"); at != std::string::npos) {
    slice.group = read.call.substr(0, at);
    slice.sequence = std::stoll(read.call.substr(at + 2));
  }
  return slice;
}

void add(Timeline& timeline, const report::TraceSlice& read) {
  const auto track = track_named(read.track);
  if (!track) throw Error(fmt::format("'{}' is on the track '{}', which is no rank's", read.name, read.track));
  if (timeline.ranks.size() <= static_cast<std::size_t>(track->rank)) timeline.ranks.resize(track->rank + 1);
  auto& rank = timeline.ranks[track->rank];
  auto& clock = read.process == "virtual clock" ? rank.virtual_clock : rank.wall_clock;
  clock.push_back(slice_of(read, track->is_in_flight));
}

}  // namespace

Timeline read_timeline(std::string_view bytes) {
  Timeline timeline;
  try {
    // A trace of Perfetto begins with the tag of its first packet.
    const auto read = bytes.starts_with('\n') ? report::read_track_events : report::read_json_trace;
    read(bytes, [&](const report::TraceSlice& slice) { add(timeline, slice); });
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("not a timeline of ranks: {}", error.what()));
  }
  return timeline;
}

}  // namespace accel::sim
