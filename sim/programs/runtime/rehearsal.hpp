#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/backend/simulate.hpp"
#include "sim/faults/fault.hpp"
#include "sim/network/network_spec.hpp"
#include "sim/programs/runtime/rehearsal_options.hpp"
#include "sim/report/run_report.hpp"

namespace accel::programs {

/// The mean optimizer step of the ranks in the middle of the run, on the clock that counts: the slowest and the fastest
/// quarter of the steps (the first ones, evaluations between) are left out. In seconds; `efficiency`: compute over the
/// whole step.
struct Prediction {
  int ranks = 0;
  double step_seconds = 0, efficiency = 0;
  sim::StepBreakdown mean;
  std::vector<sim::StepBreakdown> by_rank;

  /// False of a run with fewer than two optimizer steps.
  [[nodiscard]] bool is_known() const { return !by_rank.empty(); }
};
Prediction predict(const std::vector<sim::RankTimes>& times);
/// Of a prediction that is known. `samples_per_step`: of all ranks together, 0 if not known.
sim::ScalePoint scale_point(const Prediction& prediction, double samples_per_step);
/// A table, a line for each that is known; then a line for each that is not.
std::string describe(const std::vector<Prediction>& predictions);

/// Runs a program on simulated ranks as the options say, and writes what they ask for.
///
///     Rehearsal rehearsal(options, /*num_ranks=*/64);     // reads the files; ConfigError with all problems
///     const auto report = rehearsal.run(timeout, body);
///     rehearsal.write(report);                            // --event-log, --diagnosis, --timeline
class Rehearsal {
 public:
  Rehearsal(const RehearsalOptions& options, int num_ranks);
  /// The same with these faults in place of the file's.
  Rehearsal(const RehearsalOptions& options, int num_ranks, std::vector<sim::Fault> plan);

  sim::SimulationReport run(std::chrono::milliseconds timeout, const std::function<void(RankContext&)>& body) const;
  /// The same for a whole program, which it ends if ranks do not come back after a failure, as `write` and `conclude`
  /// say.
  sim::SimulationReport run_or_exit(const std::string& program, std::chrono::milliseconds timeout,
                                    const std::function<void(RankContext&)>& body) const;
  void write(const sim::SimulationReport& report) const;
  /// The part of the HTML page that every run has.
  [[nodiscard]] sim::RunReport page(const sim::SimulationReport& report) const;
  [[nodiscard]] const std::vector<sim::Fault>& plan() const { return plan_; }

 private:
  class TableUse;
  [[nodiscard]] sim::SimulationOptions simulation_options(const std::shared_ptr<TableUse>& use) const;
  sim::SimulationReport rehearse(std::chrono::milliseconds timeout, const std::function<void(RankContext&)>& body,
                                 std::function<void(const sim::SimulationReport&)> on_stuck) const;
  [[noreturn]] void exit_with(const sim::SimulationReport& report, const std::string& program) const;

  RehearsalOptions options_;
  int num_ranks_;
  std::vector<sim::Fault> plan_;
  std::optional<sim::NetworkSpec> network_;  // set: time is virtual
};

/// The page into the folder, which is made if it is not there.
void write_page(const sim::RunReport& page, const std::string& folder);

/// Warnings and errors to standard error, as `program: text`; then the exit code, 0 if the run ended well.
int conclude(const sim::SimulationReport& report, const std::string& program);

}  // namespace accel::programs
