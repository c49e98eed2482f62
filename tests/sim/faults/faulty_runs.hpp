#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/backend/simulate.hpp"
#include "sim/faults/fault.hpp"
#include "tests/support/small_training.hpp"

/// Runs the small training on simulated ranks under a plan of faults, and records what every rank observed.
///
/// Example: `const auto run = run_with({{.kind = FaultKind::kRankHang, .rank = 2}}); EXPECT_THAT(run.errors[0],
/// StartsWith("GlooError: Timed out"));`
///
/// Thread rule: none.
namespace accel::testing {

inline constexpr int kFaultyRanks = 4;
inline constexpr double kCollectiveSeconds = 0.001;  ///< virtual duration of every collective
inline constexpr double kOperatorSeconds = 1e-6;     ///< virtual duration of every operator

struct FaultyRun {
  sim::SimulationReport report;
  std::vector<Progress> ranks;
  std::vector<std::string> errors;  ///< per rank: type and text, or "" if its program succeeded
  int exit_code = 0;                ///< as that of sim-run

  /// Returns the virtual time at which the last rank ended.
  [[nodiscard]] double seconds() const;
  /// Returns the number of updates of each rank.
  [[nodiscard]] std::vector<int> updates() const;
};

struct FaultyRunOptions {
  sim::RankSchedule schedule = {};
  bool has_injector = true;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  TrainingPlaces places = {};
};

/// Runs a program on kFaultyRanks ranks with virtual time.
FaultyRun run_program(std::vector<sim::Fault> faults, const std::function<void(RankContext&)>& program,
                      const FaultyRunOptions& options = {});
/// Runs the small training.
FaultyRun run_with(std::vector<sim::Fault> faults, const FaultyRunOptions& options = {});

/// Returns the run without an injector, which is performed once.
const FaultyRun& clean_run();

}  // namespace accel::testing
