#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/faults/fault.hpp"
#include "sim/network/network_spec.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"
#include "sim/ranks/rehearse_ranks.hpp"
#include "sim/report/run_report.hpp"

namespace accel::programs {

/// The mean optimizer step over all ranks, in seconds, on the virtual clock if there is one, else on the wall clock.
/// The slowest and the fastest quarter of the steps are left out (warm-up, steps that contain an evaluation).
/// `efficiency` is the compute time divided by the step time.
struct Prediction {
  int ranks = 0;
  double step_seconds = 0, efficiency = 0;
  sim::StepBreakdown mean;
  std::vector<sim::StepBreakdown> by_rank;

  /// False if the run made fewer than two optimizer steps.
  [[nodiscard]] bool is_known() const { return !by_rank.empty(); }
};
Prediction predict(const std::vector<sim::RankTimes>& times);
/// Converts a known prediction to a point of the report's scaling chart. `samples_per_step` counts all ranks; 0 means
/// unknown.
sim::ScalePoint scale_point(const Prediction& prediction, double samples_per_step);
/// Formats a table with one line per known prediction, followed by one line per unknown one.
std::string describe(const std::vector<Prediction>& predictions);

/// Bodies that stand for ranks whose programs run in processes, and what the engine asks of them.
struct ProcessRanks {
  std::function<void(const sim::SimulatedRank&)> body;
  sim::ProcessorSeconds processor_seconds;  ///< of the processes
  sim::SleepUntilEnded sleep;
  sim::ContinueRank continue_rank;
};

/// What the options of a rehearsal ask for: the simulator's own options, the files to write, the page.
///
///     const Rehearsal rehearsal(options, /*num_ranks=*/64);    // reads the files; ConfigError with all problems
///     const auto report = run_threads(rehearsal, timeout, body);
///     rehearsal.write(report);                                 // --event-log, --diagnosis, --timeline
class Rehearsal {
 public:
  Rehearsal(const RehearsalOptions& options, int num_ranks);
  /// Uses these faults instead of those of the file.
  Rehearsal(const RehearsalOptions& options, int num_ranks, std::vector<sim::Fault> plan);

  [[nodiscard]] const RehearsalOptions& options() const { return options_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] const std::vector<sim::Fault>& plan() const { return plan_; }
  /// None if time is that of the wall clock.
  [[nodiscard]] const std::optional<sim::NetworkSpec>& network() const { return network_; }
  /// Without the time of operators of a cost table, which who runs the operators must measure.
  [[nodiscard]] sim::SimulationOptions simulation_options() const;

  sim::SimulationReport run_process_ranks(std::chrono::milliseconds timeout, ProcessRanks ranks) const;
  void write(const sim::SimulationReport& report) const;
  /// Returns the part of the HTML page that every kind of run shares.
  [[nodiscard]] sim::RunReport page(const sim::SimulationReport& report) const;

 private:
  RehearsalOptions options_;
  int num_ranks_;
  std::vector<sim::Fault> plan_;
  std::optional<sim::NetworkSpec> network_;
};

/// Writes the page as index.html into the folder, creating the folder if necessary.
void write_page(const sim::RunReport& page, const std::string& folder);

/// Prints to standard error: findings as real ranks print warnings, one line per injected fault that struck, and an
/// error as `program: text`. Returns the exit code, 0 if the run ended well.
int conclude(const sim::SimulationReport& report, const std::string& program);

}  // namespace accel::programs
