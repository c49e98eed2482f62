#include "sim/programs/sim_run/experiment_target.hpp"
#include "reference/config/environment.hpp"

#include <optional>

#include "sim/programs/experiments/train_experiment.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"

namespace accel::programs {
namespace {

// Runs trials in this process: no start-up time per trial, and steps can be limited.
class ExperimentTarget : public ExploreTarget {
 public:
  ExperimentTarget(std::string file, std::vector<std::string> overrides, std::string faults_file)
      : ExploreTarget(std::move(faults_file)), file_(std::move(file)), overrides_(std::move(overrides)) {}

  [[nodiscard]] bool has_steps() const override { return true; }

  TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) override {
    auto overrides = overrides_;
    if (trial.max_steps > 0) overrides.push_back(fmt::format("max_steps={}", trial.max_steps));
    const auto experiment = read_experiment(file_, overrides, trial.num_ranks);
    // The data does not depend on the number of ranks or steps, so that one load serves all trials.
    if (!task_) task_ = load_task(experiment);
    std::vector<RankResult> results(trial.num_ranks);
    auto options = options_of(trial);
    options.records_steps = true;
    const Rehearsal rehearsal(options, trial.num_ranks, faults);
    const auto report = run_threads_or_exit(rehearsal, "sim-run", collective_timeout(), [&](RankContext& rank) {
      train_experiment(rank, experiment, *task_, {.trace = true}, results[rank.rank_in_job]);
    });
    auto outcome = outcome_of(report);
    for (const auto& result : results)
      outcome.result.insert(outcome.result.end(), result.trace.begin(), result.trace.end());
    return outcome;
  }

 private:
  std::string file_;
  std::vector<std::string> overrides_;
  std::optional<Task> task_;
};

}  // namespace

std::unique_ptr<ExploreTarget> make_experiment_target(std::string file, std::vector<std::string> overrides,
                                                      std::string faults_file) {
  return std::make_unique<ExperimentTarget>(std::move(file), std::move(overrides), std::move(faults_file));
}

}  // namespace accel::programs
