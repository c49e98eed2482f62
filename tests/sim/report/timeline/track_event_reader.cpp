// The numbers of fields are those of perfetto/protos/perfetto/trace, copied independently of the writer.
#include "tests/sim/report/timeline/track_event_reader.hpp"

#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/reference/tracking/event_reader.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

struct TrackState {
  Json ids;  // "pid" and "tid"
  std::uint64_t last_time = 0;
  std::vector<std::size_t> open;  // events of the slices that have not ended
};

class Reader {
 public:
  void packet(const WireMessage& packet) {
    require(packet.number(10) == 1, "a packet of another sequence");
    if (!has_begun_) require(packet.number(13) == 1, "the first packet does not clear the incremental state");
    has_begun_ = true;
    const auto interned = packet.message(12);
    for (const int field : {1, 2, 3}) {  // categories, names, names of annotations
      for (const auto& name : interned.messages(field)) {
        const bool is_new = names_.emplace(std::pair(field, name.number(1)), name.text(2)).second;
        require(is_new && name.number(1) != 0, "a name has the number of another one, or 0");
      }
    }
    if (packet.texts.contains(60)) descriptor(packet.message(60));
    if (packet.texts.contains(11)) {
      require(packet.number(13) == 2, "an event that does not declare its use of interned names");
      event(packet.message(11), packet.number(8));
    }
  }

  std::vector<Json> finish() {
    for (const auto& [uuid, track] : tracks_) require(track.open.empty(), "a slice does not end");
    return std::move(events_);
  }

 private:
  void metadata(const Json& ids, const std::string& what, const std::string& name, std::uint64_t sort_index) {
    for (const auto& [key, args] :
         {std::pair("_name", Json{{"name", name}}), {"_sort_index", {{"sort_index", sort_index}}}}) {
      auto event = ids;
      event.update({{"ph", "M"}, {"name", what + key}, {"args", args}});
      events_.push_back(event);
    }
  }

  void descriptor(const WireMessage& track) {
    auto& state = tracks_[track.number(1)];
    require(track.number(1) != 0 && state.ids.is_null(), "a track has the number of another one, or 0");
    const auto process = track.message(3), thread = track.message(4);
    if (track.texts.contains(3)) {
      state.ids = {{"pid", process.number(1)}};
      metadata(state.ids, "process", process.text(6), process.number(3));
    } else {
      state.ids = {{"pid", thread.number(1)}, {"tid", thread.number(2)}};
      metadata(state.ids, "thread", thread.text(5), thread.number(3));
    }
  }

  [[nodiscard]] std::string name(int field, std::uint64_t number) const { return names_.at({field, number}); }

  void event(const WireMessage& event, std::uint64_t time) {
    auto& track = tracks_.at(event.number(11));
    require(track.ids.contains("tid"), "an event on the track of a process");
    require(time >= track.last_time, "a time before that of the event before");
    track.last_time = time;
    auto read = track.ids;
    read["ts"] = time;
    const auto type = event.number(9);
    if (type == 2) {
      require(!track.open.empty(), "a slice ends that has not begun");
      auto& begun = events_[track.open.back()];
      begun["dur"] = time - begun["ts"].get<std::uint64_t>();
      track.open.pop_back();
      return;
    }
    read["name"] = name(2, event.number(10));
    if (type == 1) {
      read["ph"] = "X";
      if (event.numbers.contains(3)) read["cat"] = name(1, event.number(3));
      for (const auto& annotation : event.messages(4)) {
        auto& value = read["args"][name(3, annotation.number(1))];
        if (annotation.texts.contains(6))
          value = annotation.text(6);
        else
          value = static_cast<std::int64_t>(annotation.number(4));
      }
      track.open.push_back(events_.size());
    } else {
      require(type == 3 && event.numbers.contains(47) != event.numbers.contains(48), "an unknown event");
      read["ph"] = event.numbers.contains(47) ? "s" : "f";
      read["id"] = event.number(47) + event.number(48) - 1;
    }
    events_.push_back(read);
  }

  bool has_begun_ = false;
  std::map<std::pair<int, std::uint64_t>, std::string> names_;
  std::map<std::uint64_t, TrackState> tracks_;
  std::vector<Json> events_;
};

}  // namespace

std::vector<Json> read_track_events(const std::string& bytes) {
  Reader reader;
  for (const auto& packet : WireMessage(bytes).messages(1)) reader.packet(packet);
  return reader.finish();
}

std::vector<Json> events_in_nanoseconds(const std::string& text) {
  const auto trace = Json::parse(text);
  auto events = trace.at("traceEvents").get<std::vector<Json>>();
  for (auto& event : events) {
    for (const auto* key : {"ts", "dur"}) {
      if (event.contains(key)) event[key] = std::llround(event[key].get<double>() * 1000);
    }
    event.erase("bp");
  }
  return events;
}

}  // namespace accel::testing
