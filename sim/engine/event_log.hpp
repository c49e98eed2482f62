#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/collective.hpp"
#include "reference/core/thread_safety.hpp"

namespace accel::sim {

struct EngineGroup;

/// The events of a run, in order and without times: identical for equal seeds under a serial schedule.
///
/// Thread rule: any thread; events are kept in the order of the calls.
class EventLog {
 public:
  struct Event {
    std::string_view what;  // static storage: "begin", "arrive", "wait", "go_on", "complete", "send", "receive",
                            // "fault", "fail", "leave"
    int rank = -1;
    std::optional<Collective> op = std::nullopt;
    std::string group = {};
    std::int64_t sequence = -1;
    std::string text = {};
  };

  /// A disabled log stays empty.
  explicit EventLog(bool is_enabled = true) : is_enabled_(is_enabled) {}

  void append(Event event);
  /// Like `append` above, but copies the group's name only if the log is enabled.
  void append(std::string_view what, int rank, std::optional<Collective> op = std::nullopt,
              const EngineGroup* group = nullptr, std::int64_t sequence = -1);
  /// Returns one JSON object per line:
  /// {"event":"arrive","rank":0,"op":"all_reduce","group":"world","sequence":3}.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  const bool is_enabled_;
  mutable Mutex mutex_;
  std::vector<Event> events_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
