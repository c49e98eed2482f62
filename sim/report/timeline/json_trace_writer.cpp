// Chrome's trace format. Events are appended to a buffer by hand, because a JSON library would take several times as
// long: traces have millions of events. Names are escaped once and cached.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_map>

#include "sim/report/timeline/trace_writer.hpp"

namespace accel::sim::report {
namespace {

class JsonWriter final : public TraceWriter {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out), text_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n") {}
  void process(const std::string& name) override;
  void track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
             const std::vector<Mark>& marks) override;
  void finish() override;

 private:
  void process_metadata(const char* what, const std::string& value);
  void track_metadata(const char* what, const std::string& value);
  void slice(const Slice& slice);
  void mark(const Mark& mark, bool is_last);  // is_last: no slice follows on its track
  void event_of_process(char phase);
  void event_of_track(char phase);
  void time(const char* key, Nanoseconds value);
  const std::string& escaped(const std::string& text);  // as a JSON string without quotes
  void flush();

  std::ostream& out_;
  std::string text_;
  std::unordered_map<std::string, std::string> escaped_;  // cache: few names, each used many times
  bool is_first_ = true;
  int process_ = 0;
  int track_ = kTracksBefore;
};

void JsonWriter::process(const std::string& name) {
  ++process_;
  process_metadata("process_name", fmt::format("\"name\":\"{}\"", escaped(name)));
  process_metadata("process_sort_index", fmt::format("\"sort_index\":{}", process_));
}

void JsonWriter::track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
                       const std::vector<Mark>& marks) {
  ++track_;
  text_ += is_first_ ? "" : "\n";  // one line per track: one per event would add a megabyte per million events
  track_metadata("thread_name", fmt::format("\"name\":\"{}\"", escaped(name)));
  track_metadata("thread_sort_index", fmt::format("\"sort_index\":{}", track_));
  const auto events = plan_events(slices, track, marks);
  const auto last_begin = std::find_if(events.rbegin(), events.rend(), [](const TrackEvent& event) {
                            return event.kind == TrackEventKind::kBegin;
                          }).base();
  for (auto event = events.begin(); event != events.end(); ++event) {
    if (event->kind == TrackEventKind::kBegin) slice(slices[event->index]);
    if (event->kind == TrackEventKind::kMark) mark(marks[event->index], /*is_last=*/event >= last_begin);
  }
}

void JsonWriter::finish() {
  text_ += "\n]}\n";
  flush();
}

void JsonWriter::process_metadata(const char* what, const std::string& value) {
  event_of_process('M');
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"{}\",\"args\":{{{}}}}}", what, value);
}

void JsonWriter::track_metadata(const char* what, const std::string& value) {
  event_of_track('M');
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"{}\",\"args\":{{{}}}}}", what, value);
}

void JsonWriter::slice(const Slice& slice) {
  const auto span = span_of(slice);
  event_of_track('X');
  time("ts", span.begin);
  time("dur", span.end - span.begin);
  if (const auto* category = category_of(slice.kind))
    fmt::format_to(std::back_inserter(text_), ",\"cat\":\"{}\"", category);
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"{}\"", escaped(slice.name));
  std::string arguments;
  if (slice.sequence >= 0) arguments += fmt::format(",\"call\":\"{} #{}\"", escaped(slice.group), slice.sequence);
  if (slice.bytes != 0) arguments += fmt::format(",\"bytes\":{}", slice.bytes);
  if (slice.released_by >= 0) arguments += fmt::format(",\"{}\":{}", kLate, slice.released_by);
  if (!arguments.empty()) fmt::format_to(std::back_inserter(text_), ",\"args\":{{{}}}", arguments.substr(1));
  text_ += "}";
}

// By default a head binds to the slice that follows it. Perfetto draws an arrow from the end of one slice to
// the begin of the other and reverses it if the other began first, as a wait for a late rank often has. Only if
// no slice follows is the head bound to the enclosing slice ("bp":"e").
void JsonWriter::mark(const Mark& mark, bool is_last) {
  event_of_track(mark.is_tail ? 's' : 'f');
  time("ts", mark.time);
  fmt::format_to(std::back_inserter(text_), ",\"id\":{},\"name\":\"{}\"{}}}", mark.id, kLate,
                 is_last && !mark.is_tail ? ",\"bp\":\"e\"" : "");
}

void JsonWriter::event_of_process(char phase) {
  if (text_.size() > kFlushBytes) flush();
  fmt::format_to(std::back_inserter(text_), "{}{{\"ph\":\"{}\",\"pid\":{}", is_first_ ? "" : ",", phase, process_);
  is_first_ = false;
}

void JsonWriter::event_of_track(char phase) {
  event_of_process(phase);
  fmt::format_to(std::back_inserter(text_), ",\"tid\":{}", track_);
}

// Writes microseconds, with decimals only if there are any.
void JsonWriter::time(const char* key, Nanoseconds value) {
  fmt::format_to(std::back_inserter(text_), ",\"{}\":{}", key, value / 1000);
  if (value % 1000 == 0) return;
  fmt::format_to(std::back_inserter(text_), ".{:03}", value % 1000);
  text_.erase(text_.find_last_not_of('0') + 1);
}

// Invalid UTF-8 (names are chosen by programs) is replaced, so that the trace stays valid JSON.
const std::string& JsonWriter::escaped(const std::string& text) {
  const auto [entry, is_new] = escaped_.try_emplace(text);
  if (is_new) {
    const auto quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    entry->second = quoted.substr(1, quoted.size() - 2);
  }
  return entry->second;
}

void JsonWriter::flush() {
  out_ << text_;
  text_.clear();
}

}  // namespace

std::unique_ptr<TraceWriter> make_json_writer(std::ostream& out) { return std::make_unique<JsonWriter>(out); }

}  // namespace accel::sim::report
