// The options that every form of sim-run shares: an experiment, a user program and `explore`. Checks collect all
// problems instead of stopping at the first, so that a user corrects a command line once.
#include "sim/programs/command_line/run_options.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <type_traits>

#include "backends/launch/local_launch.hpp"
#include "backends/nccl/gpus.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/engine/checks.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {
namespace {

// CLI11 converts by strtoull, which accepts -1 and numbers that are too large as the largest unsigned integer. A typing
// error would then silently select a different schedule.
std::string problem_of_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  return error == std::errc() && end == text.data() + text.size()
             ? ""
             : fmt::format("expected an integer from 0 to 2^64 - 1, got '{}'", text);
}

void list_checks() {
  for (const auto& [name, level, finds, is_fixed] : sim::check_traits()) {
    const auto shown = fmt::format("{}{}", sim::name_of(level), is_fixed ? " (always)" : "");
    std::cout << fmt::format("{:<16} {:<14} {}\n", name, shown, finds);
  }
  throw CLI::Success();
}

}  // namespace

// Files are not checked by CLI11 here but in problems_of, so that all problems are reported in one message.
void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("--ranks", options.rank_counts,
                 "Number of ranks; several, as in 8,16,32, run one after the other; 0: the program starts its ranks")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--backend", options.backend, "sim (threads of one process), gloo or nccl (local processes)")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kBackends), std::end(kBackends))))
      ->capture_default_str();
  app.add_flag("--processes", options.processes,
               "Simulated ranks are processes: for programs that keep state in globals; Python's always are");
  app.add_option("--preload", options.preload,
                 "A Python module to import before the ranks are forked, beside torch, accelerate and others that the "
                 "script imports; repeatable; none: not those of the script")
      ->allow_extra_args(false);
  app.add_flag("--quiet", options.quiet, "No progress bar");
  app.add_option("--progress", options.progress, "auto (on a terminal), on or off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  for_each_option([&](const RehearsalOption& option, auto member) {
    auto& value = options.rehearsal.*member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, bool>) {
      app.add_flag(option.flag, value, option.help);
    } else {
      auto* added = app.add_option(option.flag, value, option.help);
      if (value != Value()) added->capture_default_str();
      if (option.text == OptionText::kValues)
        added->multi_option_policy(CLI::MultiOptionPolicy::Join)->delimiter(',')->allow_extra_args(false);
      if constexpr (std::is_same_v<Value, std::uint64_t>) added->capture_default_str()->check(problem_of_seed);
    }
  });
  app.add_flag_callback("--list-checks", list_checks, "Print the checks of a run with their levels, and end");
  // Not in the help: other commands of sim-run pass them.
  app.add_option("--record", options.record.folder)->group("");
  app.add_flag("--record-tensors", options.record.tensors)->group("");
  app.add_flag("--record-values", options.record.values)->group("");
  app.add_flag("--record-audit", options.record.audit)->group("");
  app.add_flag("--record-same-work", options.record.same_work)->group("");
  app.add_option("--record-seed", options.record.seed)->group("");
  app.add_option("--record-disturb", options.record.disturb)->group("");
  app.add_option("--points", options.points)->group("");
  app.add_option("--record-steps", options.record.max_steps)->group("");
  app.add_option("--record-costs", options.record.costs)->group("");
}

// The limits differ: simulated ranks are threads and limited by the engine, real ones are processes of the launcher.
std::vector<std::string> problems_of(const RunOptions& options) {
  std::vector<std::string> problems;
  const int limit = options.backend == "sim" ? sim::World::kMaxRanks : launcher::kMaxProcesses;
  for (const int ranks : options.rank_counts) {
    if (ranks < 1 || ranks > limit)
      problems.push_back(fmt::format("--ranks: {} ranks; expected 1 to {}", ranks, limit));
  }
  if (options.backend != "sim") {
    if (options.processes) problems.emplace_back("--processes: only simulated ranks may be threads; leave it out");
    if (options.rank_counts.size() > 1)
      problems.emplace_back("--ranks: expected one number of ranks on a real backend; only the simulator runs several");
    for (auto& problem : problems_without_simulator(options.rehearsal, "--backend"))
      problems.push_back(std::move(problem));
  }
  for (auto& problem : problems_of(options.rehearsal)) problems.push_back(std::move(problem));
  if (options.backend == "nccl" && !nccl::is_available()) {
    problems.emplace_back(
        "--backend nccl: this build has no CUDA, or CUDA sees no GPU on this machine; build with `./dev build gpu`, or "
        "use gloo or sim");
  }
  return problems;
}

// All rank counts are checked before the first run: the last of a sweep may otherwise fail after hours. Different
// counts often fail for the same reason, so equal messages are printed once.
void check_rank_counts(const RunOptions& options, const std::function<void(int ranks)>& check) {
  std::vector<std::string> problems;
  for (const int ranks : options.rank_counts) {
    try {
      Rehearsal(options.rehearsal, ranks);
      check(ranks);
    } catch (const ConfigError& error) {
      if (std::find(problems.begin(), problems.end(), error.what()) == problems.end())
        problems.emplace_back(error.what());
    }
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
}

// Only output files of a single run collide. The report may be combined with a sweep: it collects all points in one
// page.
std::string problem_of_sweep(const RunOptions& options,
                             const std::vector<std::pair<std::string, std::string>>& others) {
  if (options.rank_counts.size() < 2) return "";
  auto files = others;
  for_each_option([&](const RehearsalOption& option, auto member) {
    if constexpr (std::is_same_v<decltype(member), std::string RehearsalOptions::*>) {
      if (option.text == OptionText::kOutput) files.emplace_back(option.flag, options.rehearsal.*member);
    }
  });
  std::vector<std::string> given;
  for (const auto& [option, path] : files) {
    if (!path.empty()) given.push_back(option);
  }
  if (given.empty()) return "";
  return fmt::format("--ranks {}: the runs would overwrite each other's {}; give these with one number of ranks",
                     fmt::join(options.rank_counts, ","), fmt::join(given, ", "));
}

}  // namespace accel::programs
