#include "sim/engine/event_log.hpp"

#include <fmt/format.h>

#include "sim/engine/group.hpp"

namespace accel::sim {
namespace {

// Writes JSON by hand because the engine links no JSON library. The only free text is a fault's description and
// a group's name.
std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace

void EventLog::append(Event event) {
  if (!is_enabled_) return;
  const MutexLock lock(mutex_);
  events_.push_back(std::move(event));
}

void EventLog::append(std::string_view what, int rank, std::optional<Collective> op, const EngineGroup* group,
                      std::int64_t sequence) {
  if (!is_enabled_) return;
  append({.what = what, .rank = rank, .op = op, .group = group != nullptr ? group->name : "", .sequence = sequence});
}

// The keys and their order are a file format (`--event-log`), and runs are compared by it. Absent values are
// left out.
std::vector<std::string> EventLog::lines() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> lines;
  lines.reserve(events_.size());
  for (const auto& event : events_) {
    auto line = fmt::format(R"({{"event":{},"rank":{})", json_string(event.what), event.rank);
    if (event.op) line += fmt::format(R"(,"op":{})", json_string(name_of(*event.op)));
    if (!event.group.empty()) line += fmt::format(R"(,"group":{})", json_string(event.group));
    if (event.sequence >= 0) line += fmt::format(R"(,"sequence":{})", event.sequence);
    if (!event.text.empty()) line += fmt::format(R"(,"text":{})", json_string(event.text));
    lines.push_back(line + "}");
  }
  return lines;
}

}  // namespace accel::sim
