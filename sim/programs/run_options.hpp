#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accel::programs {

/// The options that sim-run takes whatever it runs.
struct RunOptions {
  int ranks = 4;
  std::string backend = "sim";
  bool quiet = false;
  std::string progress = "auto";
};

/// Tells `app` of them. `options` takes the values when `app` parses.
void add_run_options(CLI::App& app, RunOptions& options);

/// What is impossible about them, one line each: a number of ranks, a backend that is not there.
std::vector<std::string> problems_of(const RunOptions& options);

/// Options of later stages: known, so that a message can say so.
inline constexpr const char* kNotBuilt[] = {"--project-dir", "--save-every", "--resume", "--schedule", "--seed-schedule", "--event-log", "--faults",
                                            "--diagnosis", "--network", "--clock", "--timeline", "--report"};

}  // namespace accel::programs
