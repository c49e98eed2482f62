#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/scheduling/rank_schedule.hpp"

namespace accel::programs {

/// How simulated ranks run, as set by sim-run's options; a user program receives them in ACCEL_SIM. An empty string
/// means that the option was not given.
struct RehearsalOptions {
  std::string schedule = "parallel";
  std::uint64_t seed_schedule = 0;
  int pct_depth = sim::RankSchedule().pct_depth;
  std::string event_log;
  std::string faults;
  std::string diagnosis;
  std::string network;
  std::string clock;  // "wall" or "virtual"; empty: virtual if there is a network
  std::string timeline;
  std::string device = "cpu";  // where ranks compute: "cpu" or "cuda", whose GPUs they share
  std::string report;          // a folder
  bool records_steps = false;  // keep losses and parameter hashes in the report, for sim-run explore
  std::string steps;           // write them to this file as well

  /// Throws ConfigError for an unknown schedule.
  [[nodiscard]] sim::RankSchedule rank_schedule() const {
    return {.kind = sim::rank_schedule_kind(schedule), .seed = seed_schedule, .pct_depth = pct_depth};
  }
  [[nodiscard]] bool is_virtual() const { return clock == "virtual" || (clock.empty() && !network.empty()); }
};

/// Returns one line per invalid option, e.g. "--clock virtual: needs --network FILE".
std::vector<std::string> problems_of(const RehearsalOptions& options);
/// Returns the names of the options that were given; only the simulator supports them.
std::vector<std::string> given_options(const RehearsalOptions& options);
/// Returns one line per given option, for a run on another backend, which the option named `backend` has selected.
std::vector<std::string> problems_without_simulator(const RehearsalOptions& options, const std::string& backend);

}  // namespace accel::programs
