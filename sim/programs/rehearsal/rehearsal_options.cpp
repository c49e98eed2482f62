// Validates the options of a rehearsal before any rank starts. The messages are shared by sim-run's command line,
// `accel launch --sim` and ACCEL_SIM, so they name the options of the command line.
#include "sim/programs/rehearsal/rehearsal_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <type_traits>

#include "backends/nccl/gpus.hpp"
#include "reference/core/errors.hpp"
#include "sim/engine/checks.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::programs {
namespace {

// Returns whether `place` is a writable folder, or can be created: its nearest existing ancestor must be one. The
// report creates missing folders itself, unlike the other outputs, because a page is a folder with a file in it.
bool can_hold_report(std::filesystem::path place) {
  place = std::filesystem::absolute(place);
  while (!std::filesystem::exists(place) && place.has_parent_path() && place != place.parent_path())
    place = place.parent_path();
  return std::filesystem::is_directory(place) && access(place.c_str(), W_OK) == 0;
}

}  // namespace

std::string RehearsalOption::key() const {
  std::string key = flag + 2;
  std::ranges::replace(key, '-', '_');
  return key;
}

std::optional<int> RehearsalOptions::max_unreceived_sends() const {
  if (send_capacity == "unbounded") return std::nullopt;
  int capacity = -1;
  const char* const end = send_capacity.data() + send_capacity.size();
  const auto parsed = std::from_chars(send_capacity.data(), end, capacity);
  check_config(parsed.ec == std::errc() && parsed.ptr == end && capacity >= 0,
               "--send-capacity: expected unbounded or a number of messages from 0 on, got '{}'", send_capacity);
  return capacity;
}

std::vector<std::string> given_options(const RehearsalOptions& options) {
  // Options that are given with their default value count as not given; that is harmless, since they have no effect.
  const RehearsalOptions none;
  std::vector<std::string> given;
  for_each_option([&](const RehearsalOption& option, auto member) {
    if (options.*member != none.*member) given.emplace_back(option.flag);
  });
  return given;
}

std::vector<std::string> problems_without_simulator(const RehearsalOptions& options, const std::string& backend) {
  std::vector<std::string> problems;
  for (const auto& option : given_options(options))
    problems.push_back(fmt::format("{}: only the simulator supports this option; leave {} out", option, backend));
  return problems;
}

std::string problem_of_map_cuda(const RehearsalOptions& options) {
  return options.map_cuda ? "--map-cuda: maps devices of Python programs only; leave it out, or give `-- python SCRIPT`"
                          : "";
}

// The contents of files are checked when they are read, by Rehearsal's constructor; here only their existence.
std::vector<std::string> problems_of(const RehearsalOptions& options) {
  std::vector<std::string> problems;
  try {
    sim::rank_schedule_kind(options.schedule);
  } catch (const ConfigError& error) {
    problems.push_back(fmt::format("--schedule: {}", error.what()));
  }
  // Bugs involve a handful of ordered events, so a larger depth is a typing error.
  constexpr int kMaxPctDepth = 1000;
  if (options.pct_depth < 1 || options.pct_depth > kMaxPctDepth)
    problems.push_back(fmt::format("--pct-depth: expected 1 to {}, got {}", kMaxPctDepth, options.pct_depth));
  if (options.pct_depth != RehearsalOptions().pct_depth && options.schedule != "pct")
    problems.push_back(fmt::format("--pct-depth: has no effect with --schedule {}; use --schedule pct or leave it out",
                                   options.schedule));
  try {
    (void)options.max_unreceived_sends();
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  try {
    sim::check_levels(options.checks);
  } catch (const ConfigError& error) {
    problems.push_back(fmt::format("--check: {}", error.what()));
  }
  if (!options.clock.empty() && options.clock != "wall" && options.clock != "virtual")
    problems.push_back(fmt::format("--clock: expected wall or virtual, got '{}'", options.clock));
  if (options.clock == "virtual" && options.network.empty())
    problems.emplace_back("--clock virtual: needs --network FILE, which defines the costs of time");
  if (options.clock == "wall" && !options.network.empty())
    problems.emplace_back("--clock wall: excludes --network; leave one of them out");
  if (options.device != "cpu" && options.device != "cuda")
    problems.push_back(fmt::format("--device: expected cpu or cuda, got '{}'", options.device));
  if (options.device == "cuda" && !nccl::is_available()) {
    problems.emplace_back(
        "--device cuda: this build has no CUDA, or CUDA sees no GPU on this machine; build with `./dev build gpu`, or "
        "use cpu");
  }
  for_each_option([&](const RehearsalOption& option, auto member) {
    const auto& value = options.*member;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
      const auto problem = option.text == OptionText::kOutput ? problem_of_output(value) : "";
      if (!problem.empty()) problems.push_back(fmt::format("{}: {}", option.flag, problem));
      if (option.text == OptionText::kInput && !value.empty() && !std::filesystem::is_regular_file(value))
        problems.push_back(fmt::format("{}: {} is not a file; expected an existing YAML file", option.flag, value));
    }
  });
  if (!options.report.empty() && !can_hold_report(options.report)) {
    problems.push_back(
        fmt::format("--report: {} is not a folder that can be written to; choose another folder", options.report));
  }
  return problems;
}

}  // namespace accel::programs
