#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/collectives/collective.hpp"

namespace accel::sim {

struct Group;

/// What happened in a world, in order and without times: equal for equal seeds under a serial schedule.
///
/// Thread rule: any thread; order is that of the calls.
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

  /// A log that is not enabled stays empty.
  explicit EventLog(bool is_enabled = true) : is_enabled_(is_enabled) {}

  void append(Event event);
  /// As `append`; copies the name of the group only if the log is enabled.
  void append(std::string_view what, int rank, std::optional<Collective> op = std::nullopt,
              const Group* group = nullptr, std::int64_t sequence = -1);
  /// One JSON object a line: {"event":"arrive","rank":0,"op":"all_reduce","group":"world","sequence":3}.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  const bool is_enabled_;
  mutable Mutex mutex_;
  std::vector<Event> events_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
