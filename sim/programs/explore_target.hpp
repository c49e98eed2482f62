#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/explore.hpp"
#include "sim/faults/fault.hpp"
#include "sim/programs/experiment.hpp"

namespace accel::programs {

/// How a run ended.
struct TrialOutcome {
  std::string failure;  // "" if it ended well; the same words for the same failure, e.g. "hang in all_reduce of group world"
  std::string result;   // what it computed, to be compared; of a run that ended well
  int exit_code = 0;
};

/// What `explore` runs, again and again.
class ExploreTarget {
 public:
  virtual ~ExploreTarget() = default;
  /// Throws ConfigError for a trial that cannot be, e.g. a batch that so many ranks cannot split.
  virtual TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) = 0;
  /// The faults of the run's file on so many ranks.
  [[nodiscard]] std::vector<sim::Fault> faults_of(const sim::Trial& trial) const;

 protected:
  explicit ExploreTarget(std::string faults_file) : faults_file_(std::move(faults_file)) {}

 private:
  std::string faults_file_;
};

/// An experiment, in this process. Compared are the traces of all ranks.
std::unique_ptr<ExploreTarget> explore_experiment(std::string file, std::vector<std::string> overrides, std::string faults_file);

/// A program of the user's own, a process for each run. Compared is its standard output, lines in any order.
std::unique_ptr<ExploreTarget> explore_program(std::vector<std::string> command, std::string faults_file);

/// What is wrong with a trial: its failure, or "differs" if it computes something else than the ranks taking turns do, which
/// is run once for each number of ranks, of steps and set of faults.
class TrialJudge {
 public:
  explicit TrialJudge(ExploreTarget& target) : target_(target) {}
  std::string operator()(const sim::Trial& trial);
  [[nodiscard]] int last_exit_code() const { return last_exit_code_; }

 private:
  using Shape = std::tuple<int, std::int64_t, std::vector<int>>;
  ExploreTarget& target_;
  std::map<Shape, TrialOutcome> in_turns_;
  int last_exit_code_ = 0;
};

}  // namespace accel::programs
