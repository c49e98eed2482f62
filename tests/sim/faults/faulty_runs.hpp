#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/backend/simulate.hpp"
#include "sim/faults/fault.hpp"
#include "tests/support/small_training.hpp"

/// The small training on simulated ranks under a plan of faults, and what every rank saw.
///
///     const auto run = run_with({{.kind = FaultKind::kRankHang, .rank = 2}});
///     EXPECT_THAT(run.errors[0], StartsWith("GlooError: Timed out"));
///
/// Thread rule: none.
namespace accel::testing {

inline constexpr int kFaultyRanks = 4;
inline constexpr double kCollectiveSeconds = 0.001;  ///< virtual, of every collective
inline constexpr double kOperatorSeconds = 1e-6;     ///< virtual, of every operator

struct FaultyRun {
  sim::SimulationReport report;
  std::vector<Progress> ranks;
  std::vector<std::string> errors;  ///< by rank: type and text; "" where the program ended well
  int exit_code = 0;                ///< as sim-run's

  /// When the last rank ended, on the virtual clock.
  [[nodiscard]] double seconds() const;
  /// By rank.
  [[nodiscard]] std::vector<int> updates() const;
};

struct FaultyRunOptions {
  sim::RankSchedule schedule = {};
  bool has_injector = true;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  TrainingPlaces places = {};
};

/// A program on kFaultyRanks ranks, with virtual time.
FaultyRun run_program(std::vector<sim::Fault> faults, const std::function<void(RankContext&)>& program,
                      const FaultyRunOptions& options = {});
/// The small training.
FaultyRun run_with(std::vector<sim::Fault> faults, const FaultyRunOptions& options = {});

/// The run without an injector, once.
const FaultyRun& clean_run();

}  // namespace accel::testing
