#pragma once

#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/scheduling/explore.hpp"
#include "sim/faults/fault.hpp"
#include "sim/programs/processes/fork_server.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"

namespace accel::programs {

/// How a run ended.
struct TrialOutcome {
  std::string
      failure;  // "" if it ended well; equal failures have equal texts, e.g. "hang in all_reduce of group world"
  std::vector<std::string> result = {};  // what it computed, as lines to compare; only if it ended well
  std::vector<std::string> steps = {};   // steps of all ranks as lines_of(StepRecords) formats them; compared as well
  int exit_code = 0;
  std::vector<std::string> findings = {};  // only if it ended well
};

TrialOutcome outcome_of(const sim::SimulationReport& report);
RehearsalOptions options_of(const sim::Trial& trial);

/// The program that `explore` runs repeatedly.
class ExploreTarget {
 public:
  virtual ~ExploreTarget() = default;
  /// Throws ConfigError for an impossible trial, e.g. a batch size that the ranks cannot split.
  virtual TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) = 0;
  /// Returns the trial's faults, read from the file for its number of ranks.
  [[nodiscard]] std::vector<sim::Fault> faults_of(const sim::Trial& trial) const;
  /// Returns whether a run can be limited to a number of steps.
  [[nodiscard]] virtual bool has_steps() const = 0;

 protected:
  explicit ExploreTarget(std::string faults_file) : faults_file_(std::move(faults_file)) {}

 private:
  std::string faults_file_;
};

/// Lines of a program's output that differ from run to run: those with a time, a duration or a rate.
inline constexpr const char* kTimes =
    R"(\b\d+:\d\d\b|\d ?(ns|us|ms|s|sec|secs|seconds|min|minutes|hours)\b|/(s|sec|second)\b|(s|ms)/(it|step)\b)"
    R"(|\b(time|elapsed|eta|took)\b)";

/// Explores a user program, with one process per trial. Trials are compared by losses, parameters, and the lines of
/// standard output in any order, without those in which `ignored` is found.
std::unique_ptr<ExploreTarget> make_program_target(std::vector<std::string> command, std::string faults_file,
                                                   std::regex ignored);

/// Explores a Python program, whose ranks one warm interpreter forks for every trial. Trials are compared as those of a
/// user program.
std::unique_ptr<ExploreTarget> make_python_target(RankProgram program, std::string faults_file, std::regex ignored);

/// Judges a trial: returns its failure, or "differs" if it computes a different result than ranks that take turns, or a
/// text that starts with "differs" if those fail. The reference runs once per number of ranks, number of steps and set
/// of faults.
class TrialJudge {
 public:
  explicit TrialJudge(ExploreTarget& target) : target_(target) {}
  std::string operator()(const sim::Trial& trial);
  /// Returns the exit code of the last run that failed in this way; 0 if it only differs.
  [[nodiscard]] int exit_code_of(const std::string& failure) const {
    return exit_codes_.contains(failure) ? exit_codes_.at(failure) : 0;
  }
  /// Returns where the last run with a different result diverges from ranks that take turns (rank, step, parameter); ""
  /// if there was none.
  [[nodiscard]] const std::string& difference() const { return difference_; }
  /// Returns the findings of all runs that ended well.
  [[nodiscard]] const std::set<std::string>& findings() const { return findings_; }

 private:
  using Shape = std::tuple<int, std::int64_t, std::vector<int>>;
  ExploreTarget& target_;
  std::map<Shape, TrialOutcome> round_robin_runs_;
  std::map<std::string, int> exit_codes_;
  std::set<std::string> findings_;
  std::string difference_;
};

}  // namespace accel::programs
