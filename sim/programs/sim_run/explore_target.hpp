#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/scheduling/explore.hpp"
#include "sim/faults/fault.hpp"
#include "sim/programs/experiments/experiment.hpp"

namespace accel::programs {

/// How a run ended.
struct TrialOutcome {
  std::string
      failure;  // "" if it ended well; the same words for the same failure, e.g. "hang in all_reduce of group world"
  std::vector<std::string> result = {};  // lines of what it computed, to be compared; of a run that ended well
  std::vector<std::string> steps = {};   // of all ranks, as lines_of(StepRecords) has them; to be compared, too
  int exit_code = 0;
  std::vector<std::string> findings = {};  // of a run that ended well
};

/// What `explore` runs, again and again.
class ExploreTarget {
 public:
  virtual ~ExploreTarget() = default;
  /// Throws ConfigError for a trial that cannot be, e.g. a batch that so many ranks cannot split.
  virtual TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) = 0;
  /// The faults of the run's file on so many ranks.
  [[nodiscard]] std::vector<sim::Fault> faults_of(const sim::Trial& trial) const;
  /// Whether a run can be cut after a number of steps.
  [[nodiscard]] virtual bool has_steps() const = 0;

 protected:
  explicit ExploreTarget(std::string faults_file) : faults_file_(std::move(faults_file)) {}

 private:
  std::string faults_file_;
};

/// An experiment, in this process. Compared are the traces of all ranks.
std::unique_ptr<ExploreTarget> explore_experiment(std::string file, std::vector<std::string> overrides,
                                                  std::string faults_file);

/// A program of the user's own, a process for each run. Compared are its losses and parameters, and its standard
/// output, lines in any order.
std::unique_ptr<ExploreTarget> explore_program(std::vector<std::string> command, std::string faults_file);

/// What is wrong with a trial: its failure, or "differs" if it computes something else than the ranks taking turns do,
/// or these fail. They are run once for each number of ranks, of steps and set of faults.
class TrialJudge {
 public:
  explicit TrialJudge(ExploreTarget& target) : target_(target) {}
  std::string operator()(const sim::Trial& trial);
  /// Of the last run that failed in this way; 0 of one that differs.
  [[nodiscard]] int exit_code_of(const std::string& failure) const {
    return exit_codes_.contains(failure) ? exit_codes_.at(failure) : 0;
  }
  /// Where the last run that computed something else parts from ranks that take turns: rank, step, parameter; "" if
  /// none did.
  [[nodiscard]] const std::string& difference() const { return difference_; }
  /// Of all runs that ended well.
  [[nodiscard]] const std::set<std::string>& findings() const { return findings_; }

 private:
  using Shape = std::tuple<int, std::int64_t, std::vector<int>>;
  ExploreTarget& target_;
  std::map<Shape, TrialOutcome> in_turns_;
  std::map<std::string, int> exit_codes_;
  std::set<std::string> findings_;
  std::string difference_;
};

}  // namespace accel::programs
