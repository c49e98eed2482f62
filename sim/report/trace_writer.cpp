// Appends events to a buffer by hand, because a JSON library would take several times as long: traces have
// millions of events. Names are escaped once and cached.
#include "sim/report/trace_writer.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_set>

#include "reference/core/errors.hpp"

namespace accel::sim::report {
namespace {

constexpr std::size_t kFlushBytes = 1 << 20;
// Viewers treat a thread with its process's number as the main thread and thread 0 as idle, so track numbers
// start above the process numbers.
constexpr int kTracksBefore = 10;

// Categories that the track does not already imply. An event has only tens of bytes, so every word counts.
const char* category_of(SliceKind kind) {
  return kind == SliceKind::kWait ? "wait" : kind == SliceKind::kFault ? "fault" : nullptr;
}

}  // namespace

TraceWriter::TraceWriter(std::ostream& out)
    : out_(out), text_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"), track_(kTracksBefore) {}

void TraceWriter::process(const std::string& name) {
  ++process_;
  process_metadata("process_name", fmt::format("\"name\":\"{}\"", escaped(name)));
  process_metadata("process_sort_index", fmt::format("\"sort_index\":{}", process_));
}

void TraceWriter::track(const std::string& name, const std::vector<Slice>& slices, const Track& track,
                        const std::vector<Mark>& marks) {
  ++track_;
  text_ += is_first_ ? "" : "\n";  // one line per track: one per event would add a megabyte per million events
  track_metadata("thread_name", fmt::format("\"name\":\"{}\"", escaped(name)));
  track_metadata("thread_sort_index", fmt::format("\"sort_index\":{}", track_));
  const std::unordered_set<std::size_t> here(track.begin(), track.end());
  auto next = marks.begin();
  const auto write_marks = [&](bool is_last, auto&& is_due) {
    for (; next != marks.end() && is_due(*next); ++next) {
      if (here.contains(next->slice)) mark(*next, is_last);
    }
  };
  for (const auto index : track) {
    write_marks(/*is_last=*/false,
                [begin = span_of(slices[index]).begin](const Mark& mark) { return mark.time < begin; });
    slice(slices[index]);
  }
  write_marks(/*is_last=*/true, [](const Mark&) { return true; });
}

void TraceWriter::finish() {
  text_ += "\n]}\n";
  flush();
  out_.flush();
  check_config(out_.good(), "timeline: the file could not be written completely; check the free disk space");
}

void TraceWriter::process_metadata(const char* what, const std::string& value) {
  event_of_process('M');
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"{}\",\"args\":{{{}}}}}", what, value);
}

void TraceWriter::track_metadata(const char* what, const std::string& value) {
  event_of_track('M');
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"{}\",\"args\":{{{}}}}}", what, value);
}

void TraceWriter::slice(const Slice& slice) {
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
  if (slice.released_by >= 0) arguments += fmt::format(",\"late\":{}", slice.released_by);
  if (!arguments.empty()) fmt::format_to(std::back_inserter(text_), ",\"args\":{{{}}}", arguments.substr(1));
  text_ += "}";
}

// By default a head binds to the slice that follows it. Perfetto draws an arrow from the end of one slice to
// the begin of the other and reverses it if the other began first, as a wait for a late rank often has. Only if
// no slice follows is the head bound to the enclosing slice ("bp":"e").
void TraceWriter::mark(const Mark& mark, bool is_last) {
  event_of_track(mark.is_tail ? 's' : 'f');
  time("ts", mark.time);
  fmt::format_to(std::back_inserter(text_), ",\"id\":{},\"name\":\"late\"{}}}", mark.id,
                 is_last && !mark.is_tail ? ",\"bp\":\"e\"" : "");
}

void TraceWriter::event_of_process(char phase) {
  if (text_.size() > kFlushBytes) flush();
  fmt::format_to(std::back_inserter(text_), "{}{{\"ph\":\"{}\",\"pid\":{}", is_first_ ? "" : ",", phase, process_);
  is_first_ = false;
}

void TraceWriter::event_of_track(char phase) {
  event_of_process(phase);
  fmt::format_to(std::back_inserter(text_), ",\"tid\":{}", track_);
}

// Writes microseconds, with decimals only if there are any.
void TraceWriter::time(const char* key, Nanoseconds value) {
  fmt::format_to(std::back_inserter(text_), ",\"{}\":{}", key, value / 1000);
  if (value % 1000 == 0) return;
  fmt::format_to(std::back_inserter(text_), ".{:03}", value % 1000);
  text_.erase(text_.find_last_not_of('0') + 1);
}

// Invalid UTF-8 (names are chosen by programs) is replaced, so that the trace stays valid JSON.
const std::string& TraceWriter::escaped(const std::string& text) {
  const auto [entry, is_new] = escaped_.try_emplace(text);
  if (is_new) {
    const auto quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    entry->second = quoted.substr(1, quoted.size() - 2);
  }
  return entry->second;
}

void TraceWriter::flush() {
  out_ << text_;
  text_.clear();
}

}  // namespace accel::sim::report
