#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accel::sim {

/// An interval of one rank's time, on both clocks, in seconds from the start of the run.
struct Span {
  enum class Kind { kCompute, kCollective, kWait, kFault };
  struct Interval {
    double begin = 0, end = 0;
  };
  Kind kind = Kind::kCompute;
  std::string_view name;  // static storage: the phase, the operation
  std::string group;      // of a collective or a wait
  std::int64_t sequence = -1;
  std::int64_t bytes = 0;
  int released_by = -1;  // the rank whose late arrival ended this wait
  Interval virtual_time, wall_time;
};

/// Accumulated time by cause, in seconds from the start.
struct Elapsed {
  double compute = 0;
  double exposed_communication = 0;  // waited for data after all ranks had arrived
  double straggler_wait = 0;         // waited for ranks that had not arrived
  double now = 0;                    // virtual seconds; on the wall clock, the end of the last optimizer step
};

/// One rank's time, on the virtual clock if there is one, else on the wall clock. Written by the rank's thread only.
struct RankTimes : Elapsed {
  std::vector<Elapsed> updates;  // at the end of each optimizer step
  std::vector<Span> spans;       // if recorded
};

/// What the collectives or messages of one kind moved.
struct Volume {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // tensor bytes, summed over all ranks
  double seconds = 0;      // from the last arrival to the last finish, summed
};

}  // namespace accel::sim
