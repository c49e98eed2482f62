// How `sim-run explore` runs one trial and judges it. Three kinds of program can be explored: an experiment, which runs
// in this process and loads its data once (experiment_target.cpp); a user program, which is executed again for every
// trial because its state cannot be reset; and a Python program, whose imports are done once and whose ranks are forked
// for every trial.
#include "sim/programs/sim_run/explore_target.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "backends/launch/process.hpp"
#include "reference/config/yaml_reader.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/comparison/step_difference.hpp"
#include "sim/programs/rehearsal/diagnosis_json.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

// Returns the name of a failure without numbers of ranks and collectives. Shrinking changes these numbers, and must
// still recognize the failure as the same one; it would otherwise follow a different bug.
std::string failure_of(const std::string& diagnosis_text) {
  const auto diagnosis = nlohmann::json::parse(diagnosis_text);
  const std::string kind = diagnosis["kind"];
  if (kind == "none") return "";
  if (kind == "fault") return fmt::format("fault {}", diagnosis["fault"].get<std::string>());
  if (kind == "rank_failure") {
    const std::string text = diagnosis["text"];
    const auto message = text.substr(text.find(": ") + 2);
    return fmt::format("rank failure: {}", message.substr(0, message.find('\n')));
  }
  return diagnosis["op"].is_null() ? kind
                                   : fmt::format("{} in {} of group {}", kind, diagnosis["op"].get<std::string>(),
                                                 diagnosis["group"].get<std::string>());
}

// The text of a run that ended well lists its findings, and faults that did not stop it; the latter are expected in an
// exploration with faults and are dropped. See diagnosis_json for the prefix.
TrialOutcome outcome_of_diagnosis(const std::string& diagnosis_text) {
  TrialOutcome outcome{.failure = failure_of(diagnosis_text)};
  std::istringstream lines(nlohmann::json::parse(diagnosis_text)["text"].get<std::string>());
  for (std::string line; outcome.failure.empty() && std::getline(lines, line);) {
    if (!line.starts_with("injected fault: ")) outcome.findings.push_back(line);
  }
  return outcome;
}

// Describes the first line that differs. Used only if losses and parameters are equal, so the text starts with that.
std::string line_difference(const std::vector<std::string>& result, const std::vector<std::string>& round_robin) {
  const auto [own, other] = std::mismatch(result.begin(), result.end(), round_robin.begin(), round_robin.end());
  const auto quoted = [](auto line, auto end) { return line == end ? "nothing" : "'" + *line + "'"; };
  return fmt::format("losses and parameters are equal; the program prints {}, but {} when the ranks take turns",
                     quoted(own, result.end()), quoted(other, round_robin.end()));
}

// Runs each trial as a process of the user program, with the protocol of sim_request.hpp.
class ProgramTarget : public ExploreTarget {
 public:
  ProgramTarget(std::vector<std::string> command, std::string faults_file, std::regex ignored)
      : ExploreTarget(std::move(faults_file)), command_(std::move(command)), ignored_(std::move(ignored)) {}

  [[nodiscard]] bool has_steps() const override { return false; }

  TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) override {
    const auto path = [&](const char* name) { return (fs::path(folder_.path()) / name).string(); };
    SimRequest request{.ranks = trial.num_ranks, .rehearsal = options_of(trial)};
    request.rehearsal.diagnosis = path("diagnosis.json");
    request.rehearsal.steps = path("steps.jsonl");
    if (!faults.empty()) {
      request.rehearsal.faults = path("faults.yaml");
      write_text(request.rehearsal.faults, sim::to_yaml(faults));
    }
    // The folder is reused by all trials. A diagnosis that exists afterwards must be of this one.
    fs::remove(request.rehearsal.diagnosis);
    // Standard error repeats the same diagnosis for hundreds of trials, so it is discarded.
    const int exit_code = run_child({.command = command_, .environment = {{kSimRequestVariable, to_json(request)}}},
                                    path("output"), "/dev/null")
                              .exit_code;
    // Without a diagnosis the program never reached accel::run, or the process died. Exit code 2 is wrong usage, which
    // is the same for every schedule, so exploring on would be pointless.
    if (!fs::exists(request.rehearsal.diagnosis)) {
      if (exit_code == kSuccess)
        throw Error(
            fmt::format("'{}' ended without calling accel::run; expected a program whose main is `return "
                        "accel::run(argc, argv, train);`",
                        command_.front()));
      check_config(exit_code != kUsage, "'{}' {}; run it alone to see why", command_.front(),
                   launcher::describe_exit_code(exit_code));
      // A crash without a diagnosis is a finding, too: e.g. a segmentation fault that only some schedules cause.
      return {.failure = fmt::format("the program {}", launcher::describe_exit_code(exit_code)),
              .exit_code = exit_code};
    }
    auto outcome = outcome_of_diagnosis(accel::read_text(request.rehearsal.diagnosis));
    outcome.exit_code = exit_code;
    outcome.result = lines_in(path("output"));
    std::erase_if(outcome.result, [&](const auto& line) { return std::regex_search(line, ignored_); });
    // Ranks print in the order of the schedule, which differs between trials by design. Only the set of lines counts.
    std::sort(outcome.result.begin(), outcome.result.end());
    outcome.steps = lines_in(path("steps.jsonl"));
    return outcome;
  }

 private:
  std::vector<std::string> command_;
  std::regex ignored_;
  TemporaryFolder folder_;
};

class PythonTarget : public ExploreTarget {
 public:
  PythonTarget(RankProgram program, std::string faults_file, std::regex ignored)
      : ExploreTarget(std::move(faults_file)), program_(std::move(program)), ignored_(std::move(ignored)) {}

  [[nodiscard]] bool has_steps() const override { return false; }

  TrialOutcome run(const sim::Trial& trial, const std::vector<sim::Fault>& faults) override {
    auto options = options_of(trial);
    options.records_steps = true;
    auto outcome =
        outcome_of(program_.run(Rehearsal(options, trial.num_ranks, faults), trial.num_ranks, folder_.path()));
    for (int rank = 0; rank < trial.num_ranks; ++rank) {
      for (const auto& line : lines_in(fmt::format("{}/output{}", folder_.path(), rank))) {
        if (!std::regex_search(line, ignored_)) outcome.result.push_back(fmt::format("rank {}: {}", rank, line));
      }
    }
    return outcome;
  }

 private:
  ForkServer program_;
  std::regex ignored_;
  TemporaryFolder folder_;
};

}  // namespace

TrialOutcome outcome_of(const sim::SimulationReport& report) {
  auto outcome = outcome_of_diagnosis(diagnosis_json(report));
  outcome.steps = lines_of(report.steps);
  if (!report.error) return outcome;
  try {
    std::rethrow_exception(report.error);
  } catch (const std::exception& error) {
    outcome.exit_code = exit_code_of(error);
  }
  return outcome;
}

// pct_depth is only set for pct schedules: the options' check rejects it with any other.
RehearsalOptions options_of(const sim::Trial& trial) {
  RehearsalOptions options{.schedule = name_of(trial.schedule.kind), .seed_schedule = trial.schedule.seed};
  if (trial.schedule.kind == sim::ScheduleKind::kPct) options.pct_depth = trial.schedule.pct_depth;
  return options;
}

// The file is read again for every trial, because faults with `rank: any` depend on the number of ranks, which shrinks.
std::vector<sim::Fault> ExploreTarget::faults_of(const sim::Trial& trial) const {
  if (faults_file_.empty()) return {};
  const auto all = sim::read_faults(faults_file_, trial.num_ranks);
  std::vector<sim::Fault> chosen;
  for (const int index : trial.faults) chosen.push_back(all.at(index));
  return chosen;
}

std::unique_ptr<ExploreTarget> make_program_target(std::vector<std::string> command, std::string faults_file,
                                                   std::regex ignored) {
  return std::make_unique<ProgramTarget>(std::move(command), std::move(faults_file), std::move(ignored));
}

std::unique_ptr<ExploreTarget> make_python_target(RankProgram program, std::string faults_file, std::regex ignored) {
  return std::make_unique<PythonTarget>(std::move(program), std::move(faults_file), std::move(ignored));
}

// The reference is a round-robin run of the same shape: the simplest deterministic schedule. A program whose result
// does not depend on timing computes the same under every schedule, so any difference is a race. One reference per
// shape suffices, because runs with the same schedule have the same bits.
std::string TrialJudge::operator()(const sim::Trial& trial) {
  try {
    const auto faults = target_.faults_of(trial);
    auto round_robin = round_robin_runs_.find({trial.num_ranks, trial.max_steps, trial.faults});
    if (round_robin == round_robin_runs_.end()) {
      auto turns = trial;
      turns.schedule = {.kind = sim::ScheduleKind::kRoundRobin};
      round_robin =
          round_robin_runs_.emplace(Shape{trial.num_ranks, trial.max_steps, trial.faults}, target_.run(turns, faults))
              .first;
    }
    const auto outcome = target_.run(trial, faults);
    if (!outcome.failure.empty()) {
      exit_codes_[outcome.failure] = outcome.exit_code;
      return outcome.failure;
    }
    findings_.insert(outcome.findings.begin(), outcome.findings.end());
    if (!round_robin->second.failure.empty())
      return fmt::format("differs from ranks that take turns, which fail with: {}", round_robin->second.failure);
    if (round_robin->second.result == outcome.result && round_robin->second.steps == outcome.steps) return "";
    difference_ = difference_of(outcome.steps, round_robin->second.steps)
                      .value_or(line_difference(outcome.result, round_robin->second.result));
    return "differs";
  } catch (const ConfigError&) {
    if (round_robin_runs_.empty()) throw;
    return "";  // shrinking tried an impossible configuration, e.g. a batch size that the ranks cannot split
  }
}

}  // namespace accel::programs
