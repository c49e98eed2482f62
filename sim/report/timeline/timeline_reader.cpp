#include "sim/report/timeline/timeline_reader.hpp"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

using Json = nlohmann::json;

struct Track {
  int rank = 0;
  bool is_in_flight = false;
};

// "rank 3", "rank 3 (2)", "rank 3 collectives", "rank 3 collectives (2)".
std::optional<Track> track_named(std::string_view name) {
  constexpr std::string_view kPrefix = "rank ";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  Track track;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), track.rank);
  if (problem != std::errc() || track.rank < 0 || track.rank >= 1 << 20) return std::nullopt;
  track.is_in_flight = std::string_view(end, name.data() + name.size() - end).starts_with(" collectives");
  return track;
}

Slice slice_of(const Json& event, const Track& track) {
  const auto category = event.value("cat", "");
  Slice slice{.kind = category == "wait"    ? SliceKind::kWait
                      : category == "fault" ? SliceKind::kFault
                      : track.is_in_flight  ? SliceKind::kCollective
                                            : SliceKind::kCompute,
              .name = event.at("name"),
              .begin = event.at("ts").get<double>() * 1e-6};
  slice.end = slice.begin + event.at("dur").get<double>() * 1e-6;
  if (const auto arguments = event.find("args"); arguments != event.end()) {
    slice.bytes = arguments->value("bytes", std::int64_t{0});
    const auto call = arguments->value("call", "");
    if (const auto at = call.rfind(" #"); at != std::string::npos) {
      slice.group = call.substr(0, at);
      slice.sequence = std::stoll(call.substr(at + 2));
    }
  }
  return slice;
}

}  // namespace

Timeline read_timeline(std::string_view text) {
  Timeline timeline;
  std::map<int, std::string> clocks;            // by process
  std::map<std::pair<int, int>, Track> tracks;  // by process and thread
  try {
    const auto trace = Json::parse(text);
    for (const auto& event : trace.at("traceEvents")) {
      const int process = event.at("pid");
      const std::string phase = event.at("ph"), name = event.at("name");
      if (phase == "M" && name == "process_name") clocks[process] = event.at("args").at("name");
      if (phase == "M" && name == "thread_name") {
        if (const auto track = track_named(event.at("args").at("name").get<std::string>()))
          tracks[{process, event.at("tid")}] = *track;
      }
      if (phase != "X") continue;
      const auto& track = tracks.at({process, event.at("tid")});
      if (timeline.ranks.size() <= static_cast<std::size_t>(track.rank)) timeline.ranks.resize(track.rank + 1);
      auto& rank = timeline.ranks[track.rank];
      (clocks.at(process) == "virtual clock" ? rank.virtual_clock : rank.wall_clock).push_back(slice_of(event, track));
    }
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("not a timeline of ranks in Chrome's JSON: {}", error.what()));
  }
  return timeline;
}

}  // namespace accel::sim
