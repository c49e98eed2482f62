#pragma once

#include <cstdint>
#include <optional>
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
  std::string send_capacity = "unbounded";
  std::string faults;
  std::string checks;  // see sim::check_levels
  std::string diagnosis;
  std::string network;
  std::string clock;  // "wall" or "virtual"; empty: virtual if there is a network
  std::string timeline;
  std::string device = "cpu";  // where ranks compute: "cpu" or "cuda", whose GPUs they share
  bool map_cuda = false;       // of a Python program: devices of CUDA mean the CPU, and the backend nccl means gloo
  std::string report;          // a folder
  bool records_steps = false;  // keep losses and parameter hashes in the report, for sim-run explore
  std::string steps;           // write them to this file as well

  /// Throws ConfigError unless it is "unbounded" or a number from 0 on.
  [[nodiscard]] std::optional<int> max_unreceived_sends() const;
  /// Throws ConfigError for an unknown schedule.
  [[nodiscard]] sim::RankSchedule rank_schedule() const {
    return {.kind = sim::rank_schedule_kind(schedule), .seed = seed_schedule, .pct_depth = pct_depth};
  }
  [[nodiscard]] bool is_virtual() const { return clock == "virtual" || (clock.empty() && !network.empty()); }
};

/// What the text of an option names. kValues: given several times, they are separated by commas.
enum class OptionText { kValue, kValues, kInput, kOutput, kFolder };

/// An option of sim-run that a user program receives in ACCEL_SIM, under its name without the hyphens.
struct RehearsalOption {
  const char* flag;
  const char* help;
  OptionText text = OptionText::kValue;
  [[nodiscard]] std::string key() const;
};

/// All options, listed once, each with its member: flags, keys of ACCEL_SIM and checks of files follow.
template <typename Visit>
void for_each_option(Visit&& visit) {
  using enum OptionText;
  using Option = RehearsalOption;
  using All = RehearsalOptions;
  visit(
      Option{"--device", "Where simulated ranks compute: cpu, or cuda, on the GPUs of this machine, which they share"},
      &All::device);
  visit(
      Option{"--map-cuda", "Run a Python program for GPUs on CPU ranks: devices of CUDA mean the CPU, nccl means gloo"},
      &All::map_cuda);
  visit(Option{"--schedule", "Order in which ranks run: parallel, or one rank at a time: round-robin, random, pct"},
        &All::schedule);
  visit(Option{"--seed-schedule", "Seed of a random or pct schedule"}, &All::seed_schedule);
  visit(Option{"--pct-depth", "For a pct schedule: the number of events whose order triggers the bug"},
        &All::pct_depth);
  visit(Option{"--send-capacity",
               "Messages from one rank to another that may wait for their receives before a send blocks: 0 as NCCL "
               "without buffers, 1, ..., or unbounded"},
        &All::send_capacity);
  visit(Option{"--event-log", "Write every event, in order, to this file, as JSON lines", kOutput}, &All::event_log);
  visit(Option{"--faults", "Inject the faults of this file (YAML)", kInput}, &All::faults);
  visit(Option{"--check", "NAME=error|finding|off: what a check does with what it finds; repeatable; see --list-checks",
               kValues},
        &All::checks);
  visit(Option{"--diagnosis", "Write how the run ended to this file, as JSON", kOutput}, &All::diagnosis);
  visit(Option{"--network", "Costs of communication and compute (YAML); makes time virtual", kInput}, &All::network);
  visit(Option{"--clock", "wall or virtual; default: virtual with --network, else wall"}, &All::clock);
  visit(Option{"--timeline",
               "Write a timeline of all ranks to this file, for Perfetto; Chrome's JSON if it ends in .json", kOutput},
        &All::timeline);
  visit(Option{"--report", "Write an HTML page about the run into this folder", kFolder}, &All::report);
}

/// Returns one line per invalid option, e.g. "--clock virtual: needs --network FILE".
std::vector<std::string> problems_of(const RehearsalOptions& options);
/// Returns the names of the options that were given; only the simulator supports them.
std::vector<std::string> given_options(const RehearsalOptions& options);
/// The problem of --map-cuda in a run of anything but a Python program; "" if the option was not given.
std::string problem_of_map_cuda(const RehearsalOptions& options);
/// Returns one line per given option, for a run on another backend, which the option named `backend` has selected.
std::vector<std::string> problems_without_simulator(const RehearsalOptions& options, const std::string& backend);

}  // namespace accel::programs
