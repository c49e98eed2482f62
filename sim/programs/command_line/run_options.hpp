#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/programs/experiments/plan_request.hpp"
#include "sim/programs/runtime/rehearsal_options.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accel::programs {

/// The options that sim-run takes whatever it runs.
struct RunOptions {
  std::vector<int> rank_counts = {4};  // more than one: a run for each, one after the other
  std::string backend = "sim";
  bool quiet = false;
  std::string progress = "auto";
  RehearsalOptions rehearsal;

  [[nodiscard]] int ranks() const { return rank_counts.back(); }
};

/// Tells `app` of them. `options` takes the values when `app` parses.
void add_run_options(CLI::App& app, RunOptions& options);

/// What is impossible about them, one line each: a number of ranks, a backend that is not there.
std::vector<std::string> problems_of(const RunOptions& options);

/// Before anything runs: throws ConfigError with all problems if a number of ranks does not fit the network, the
/// faults, or what `check` throws a ConfigError about.
void check_rank_counts(
    const RunOptions& options, const std::function<void(int ranks)>& check = [](int) {});

/// "", or which files the runs of a sweep would overwrite, or fail to make as they are there: of the rehearsal's and of
/// these others, given as option and path.
std::string problem_of_sweep(const RunOptions& options,
                             const std::vector<std::pair<std::string, std::string>>& others = {});

/// Adds the flags of a request's fields to `app`; `request` takes the values when `app` parses. Returns those that are
/// required where no file gives the values. `add_loader_options`: only of the fields that describe a loader.
std::vector<const CLI::Option*> add_loader_options(CLI::App& app, PlanRequest& request);
std::vector<const CLI::Option*> add_plan_options(CLI::App& app, PlanRequest& request);

}  // namespace accel::programs
