// Checks a trace by the rules of Chrome's format. The rules are written down independently of the writer, from the
// format's documentation, because Perfetto itself silently drops what it does not understand.
#include "tests/sim/report/timeline/trace_rules.hpp"

#include <cmath>
#include <map>
#include <set>
#include <sstream>

namespace accel::testing {
namespace {

using Json = nlohmann::json;
using TrackId = std::pair<int, int>;

std::int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

// A slice that is still open on its track, in nanoseconds.
struct Box {
  std::int64_t begin = 0, end = 0;
};

// The two ends of an arrow as they are found in the trace.
struct Arrow {
  int tails = 0, heads = 0;
  std::int64_t tail_time = 0, head_time = 0;
};

// Checks events one by one in the order of the file.
class Judge {
 public:
  void judge(const Json& event) {
    if (!has_form(event)) return;
    const auto phase = event["ph"].get<std::string>();
    if (phase == "M") return name(event);
    const TrackId track{event["pid"], event["tid"]};
    if (!names_.contains({track.first, track.second, "thread_name"})) wrong(event, "its track has no name");
    if (!names_.contains({track.first, 0, "process_name"})) wrong(event, "its process has no name");
    const auto time = nanoseconds(event["ts"]);
    if (time < last_[track]) wrong(event, "earlier than the event before it on its track");
    last_[track] = time;
    if (phase == "X") {
      unbound_.erase(track);
      slice(event, boxes_[track], time);
    } else {
      arrow(event, boxes_[track], time);
      if (phase == "f" && event.value("bp", "") != "e") unbound_[track] = event.dump();
    }
  }

  std::vector<std::string> finish() {
    for (const auto& [id, arrow] : arrows_) {
      const auto which = "arrow " + std::to_string(id) + ": ";
      if (arrow.tails != 1 || arrow.heads != 1)
        broken_.push_back(which + "not one tail and one head");
      else if (arrow.head_time <= arrow.tail_time)
        broken_.push_back(which + "its head is not after its tail");
    }
    for (const auto& [track, head] : unbound_) broken_.push_back("points to no slice: " + head);
    return broken_;
  }

 private:
  void wrong(const Json& event, const std::string& what) { broken_.push_back(what + ": " + event.dump()); }

  bool has_form(const Json& event) {
    const auto before = broken_.size();
    if (!event.contains("ph") || !event.contains("name") || !event["name"].is_string())
      wrong(event, "no phase or no name");
    if (!event.contains("pid") || !event["pid"].is_number_integer()) wrong(event, "no process");
    if (broken_.size() != before) return false;
    const auto phase = event["ph"].get<std::string>();
    if (phase != "M" && phase != "X" && phase != "s" && phase != "f") wrong(event, "unknown phase");
    if (phase != "M" && (!event.contains("tid") || !event.contains("ts"))) wrong(event, "no track or no time");
    if (phase == "X" && !event.contains("dur")) wrong(event, "no duration");
    for (const auto* key : {"ts", "dur"}) {
      if (event.contains(key) && !(event[key].is_number() && event[key].get<double>() >= 0))
        wrong(event, "a time that is none");
    }
    return broken_.size() == before;
  }

  void name(const Json& event) {
    const auto what = event["name"].get<std::string>();
    const bool of_process = what.rfind("process_", 0) == 0;
    if (event.contains("tid") == of_process)
      wrong(event, "a track where there should be none, or none where there should be one");
    if (!names_.insert({event["pid"], event.value("tid", 0), what}).second) wrong(event, "named twice");
    if (!event["args"].contains(what.find("sort_index") == std::string::npos ? "name" : "sort_index"))
      wrong(event, "no value");
  }

  void slice(const Json& event, std::vector<Box>& open, std::int64_t begin) {
    const Box box{begin, begin + nanoseconds(event["dur"])};
    // Slices that have ended leave the stack; the remaining ones enclose this slice.
    while (!open.empty() && open.back().end <= box.begin) open.pop_back();
    if (!open.empty() && open.back().end < box.end) wrong(event, "overlaps a slice that it does not lie within");
    open.push_back(box);
  }

  void arrow(const Json& event, std::vector<Box>& open, std::int64_t time) {
    while (!open.empty() && open.back().end <= time) open.pop_back();
    if (open.empty()) wrong(event, "stands on no slice");
    const bool is_tail = event["ph"] == "s";
    auto& arrow = arrows_[event["id"].get<std::int64_t>()];
    ++(is_tail ? arrow.tails : arrow.heads);
    (is_tail ? arrow.tail_time : arrow.head_time) = time;
  }

  std::set<std::tuple<int, int, std::string>> names_;
  std::map<TrackId, std::int64_t> last_;
  std::map<TrackId, std::vector<Box>> boxes_;
  std::map<TrackId, std::string> unbound_;  // the last arrowhead that is bound to the next slice
  std::map<std::int64_t, Arrow> arrows_;
  std::vector<std::string> broken_;
};

}  // namespace

std::string trace_text(const sim::Timeline& timeline, sim::TimelineFormat format) {
  std::ostringstream out;
  sim::write_timeline(out, timeline, format);
  return out.str();
}

std::vector<std::string> broken_rules(const std::string& text) {
  Judge judge;
  const auto trace = Json::parse(text);
  for (const auto& event : trace.at("traceEvents")) judge.judge(event);
  return judge.finish();
}

// The events of one kind; the phases are letters in the format, e.g. X for a slice.
std::vector<Json> events_of(const std::string& text, const std::string& phase) {
  std::vector<Json> events;
  const auto trace = Json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

}  // namespace accel::testing
