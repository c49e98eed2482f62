#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/programs/comparison/record_options.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace accel::programs {

/// The options that sim-run accepts whatever it runs.
struct RunOptions {
  std::vector<int> rank_counts = {4};  // one run per number, one after the other
  std::string backend = "sim";
  bool quiet = false;
  bool processes = false;            // simulated ranks are processes of a user program
  std::vector<std::string> preload;  // what a Python program's ranks share
  std::string progress = "auto";
  bool program_starts_ranks = false;  // --ranks 0: of a user program, which is started once
  RehearsalOptions rehearsal = {};
  std::string points;  // a file to which the prediction of a run is appended
  RecordOptions record = {};

  [[nodiscard]] int ranks() const { return rank_counts.back(); }
};

/// Registers the options with `app`, which stores their values in `options` when it parses.
void add_run_options(CLI::App& app, RunOptions& options);

/// Returns one line per invalid option, e.g. an impossible number of ranks or an unavailable backend.
std::vector<std::string> problems_of(const RunOptions& options);

/// Checks every number of ranks before anything runs. Throws ConfigError with all problems if one does not fit the
/// network or the faults, or if `check` throws a ConfigError.
void check_rank_counts(
    const RunOptions& options, const std::function<void(int ranks)>& check = [](int) {});

/// Returns which output files the runs of a sweep would overwrite, or could not create because they exist, among the
/// rehearsal's and `others`, given as option and path. Returns "" if there is no such file.
std::string problem_of_sweep(const RunOptions& options,
                             const std::vector<std::pair<std::string, std::string>>& others = {});

}  // namespace accel::programs
