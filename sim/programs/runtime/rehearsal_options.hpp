#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/scheduling/rank_schedule.hpp"

namespace accel::programs {

/// How simulated ranks are run, as sim-run's options say it; a program of the user's own gets them in ACCEL_SIM. Empty:
/// none.
struct RehearsalOptions {
  std::string schedule = "parallel";
  std::uint64_t seed_schedule = 0;
  int pct_depth = sim::RankSchedule().pct_depth;
  std::string event_log;
  std::string faults;
  std::string diagnosis;
  std::string network;
  std::string clock;  // "wall", "virtual"; empty: virtual if there is a network
  std::string timeline;
  std::string report;          // a folder
  bool records_steps = false;  // losses and hashes of parameters, in the report: for sim-run explore
  std::string steps;           // and in this file

  /// Throws ConfigError for a name that is none.
  [[nodiscard]] sim::RankSchedule rank_schedule() const {
    return {.kind = sim::rank_schedule_kind(schedule), .seed = seed_schedule, .pct_depth = pct_depth};
  }
  [[nodiscard]] bool is_virtual() const { return clock == "virtual" || (clock.empty() && !network.empty()); }
};

/// One line for each of them that cannot be, e.g. "--clock virtual: needs --network FILE".
std::vector<std::string> problems_of(const RehearsalOptions& options);
/// The options that were given, by name: those that only the simulator has.
std::vector<std::string> given_options(const RehearsalOptions& options);
/// One line for each of them, for a run on another backend, which was chosen by `backend`.
std::vector<std::string> problems_without_simulator(const RehearsalOptions& options, const std::string& backend);

}  // namespace accel::programs
