// `sim-run explore`: the command line around sim::explore, which chooses schedules and shrinks what fails. This file
// checks the options, reports the result as JSON and prints the sim-run command that replays it.
#include "sim/programs/sim_run/commands.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/system/print_warning.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"
#include "sim/programs/sim_run/explore_target.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kShrunkFaults = "explore_faults.yaml";
// Options that describe a single run. The parser accepts them, so that a command line of sim-run can be turned into one
// of explore, and the check then explains what to do instead of "unknown option".
constexpr const char* kSingleRunOptions[] = {"--event-log", "--diagnosis", "--network",
                                             "--clock",     "--timeline",  "--report"};

struct ExploreArguments : RunOptions {
  std::int64_t schedules = 100;
  std::string ignore_lines = kTimes;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> max_steps;
  std::string experiment;
  std::vector<std::string> command;
};

// Case does not matter: programs print "time", "Time" and "ETA". Throws std::regex_error.
std::regex ignored_lines(const std::string& pattern) {
  return pattern.empty() ? std::regex("(?!)") : std::regex(pattern, std::regex::icase);
}

std::vector<std::string> problems_of(const ExploreArguments& arguments) {
  auto problems = programs::problems_of(static_cast<const RunOptions&>(arguments));
  const auto& rehearsal = arguments.rehearsal;
  if (arguments.max_steps.value_or(1) < 1)
    problems.push_back(fmt::format("--max-steps: expected 1 or more, got {}", *arguments.max_steps));
  if (arguments.schedules < 1)
    problems.push_back(fmt::format("--schedules: expected 1 or more, got {}", arguments.schedules));
  try {
    ignored_lines(arguments.ignore_lines);
  } catch (const std::regex_error& error) {
    problems.push_back(
        fmt::format("--ignore-lines: '{}' is not a regular expression: {}", arguments.ignore_lines, error.what()));
  }
  if (rehearsal.schedule == "parallel" || rehearsal.schedule == "round-robin")
    problems.push_back(fmt::format("--schedule {}: is a single schedule; expected random or pct", rehearsal.schedule));
  if (arguments.backend != "sim" || arguments.rank_counts.size() > 1)
    problems.emplace_back("explore: expected one number of ranks, and --backend sim");
  const auto given = given_options(rehearsal);
  for (const auto* option : kSingleRunOptions) {
    if (std::find(given.begin(), given.end(), option) != given.end())
      problems.push_back(fmt::format(
          "{}: applies to one run; leave it out, and add it to the replay command that explore prints", option));
  }
  if (arguments.experiment.empty() == arguments.command.empty())
    problems.emplace_back("explore: expected an experiment file or `-- PROGRAM [ARGS...]`");
  const bool is_python = is_python_program(arguments.command);
  if (auto problem = problem_of_map_cuda(rehearsal); !is_python && !problem.empty())
    problems.push_back(std::move(problem));
  if (!arguments.command.empty() && (!arguments.overrides.empty() || arguments.max_steps))
    problems.emplace_back("--set, --max-steps: only experiments support these options; leave them out");
  return problems;
}

// The line uses options that plain sim-run accepts, so replaying needs neither explore nor the other schedules. Only
// values that differ from the defaults are listed.
std::string replay_line(const ExploreArguments& arguments, const sim::Trial& trial, const std::string& faults) {
  std::vector<std::string> words{"sim-run",
                                 "--ranks",
                                 std::to_string(trial.num_ranks),
                                 "--schedule",
                                 name_of(trial.schedule.kind),
                                 "--seed-schedule",
                                 std::to_string(trial.schedule.seed)};
  const auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  if (trial.schedule.pct_depth != RehearsalOptions().pct_depth)
    add({"--pct-depth", std::to_string(trial.schedule.pct_depth)});
  if (!faults.empty()) add({"--faults", faults});
  if (arguments.rehearsal.map_cuda) add({"--map-cuda"});
  if (arguments.experiment.empty()) {
    add({"--"});
    words.insert(words.end(), arguments.command.begin(), arguments.command.end());
  } else {
    for (const auto& text : arguments.overrides) add({"--set", text});
    if (trial.max_steps > 0) add({"--max-steps", std::to_string(trial.max_steps)});
    add({arguments.experiment});
  }
  return shell_line(words);
}

// Returns the file that replays the faults that remain after shrinking: the given one if all do, "" if none does, else
// a new file in the working directory.
// Fewer faults than given need a new file, which must outlive this process for the replay line to work.
std::string faults_file(const ExploreArguments& arguments, const ExploreTarget& target, const sim::Trial& first,
                        const sim::Trial& found) {
  if (found.faults == first.faults) return arguments.rehearsal.faults;
  if (found.faults.empty()) return "";
  write_text(kShrunkFaults, sim::to_yaml(target.faults_of(found)));
  return kShrunkFaults;
}

struct Found {
  int exit_code = 0;
  std::string difference;  // where the run diverges from ranks that take turns
};

// Prints the finding for people on standard error, and one line of JSON on standard output. A failure of any other kind
// than a diagnosed hang or desync is exit code 1: explore itself worked, and what it found is a bug of the program.
int report(const ExploreArguments& arguments, const ExploreTarget& target, const sim::Trial& first,
           const sim::Exploration& exploration, const Found& what) {
  Json found = nullptr;
  if (exploration.failure) {
    const auto& trial = *exploration.failure;
    const auto replay = replay_line(arguments, trial, faults_file(arguments, target, first, trial));
    const auto difference = what.difference.empty() ? "" : ": " + what.difference;
    std::cerr << fmt::format("sim-run: schedule {} of {}: {}{}\n  {}\n", exploration.num_schedules, arguments.schedules,
                             exploration.signature, difference, replay);
    std::vector<std::string> faults;
    for (const auto& fault : target.faults_of(trial)) faults.push_back(sim::describe(fault));
    found = {{"signature", exploration.signature},
             {"ranks", trial.num_ranks},
             {"max_steps", trial.max_steps > 0 ? Json(trial.max_steps) : Json(nullptr)},
             {"schedule", name_of(trial.schedule.kind)},
             {"seed_schedule", trial.schedule.seed},
             {"faults", faults},
             {"replay", replay},
             {"difference", what.difference.empty() ? Json(nullptr) : Json(what.difference)}};
  }
  std::cout << Json{{"schedules", exploration.num_schedules}, {"found", found}}.dump() << std::endl;
  return exploration.failure ? (what.exit_code == kDiagnosed ? kDiagnosed : kFailure) : kSuccess;
}

std::unique_ptr<ExploreTarget> make_target(const ExploreArguments& arguments, const ExperimentFiles& experiments) {
  const auto& faults = arguments.rehearsal.faults;
  if (!arguments.experiment.empty()) return experiments.make_target(arguments.experiment, arguments.overrides, faults);
  if (auto program = python_program(arguments.command, arguments.preload)) {
    program->environment[kSimRequestVariable] = to_json({.rehearsal = {.map_cuda = arguments.rehearsal.map_cuda}});
    return make_python_target(faults.empty() ? std::move(*program) : with_watched_writes(std::move(*program)), faults,
                              ignored_lines(arguments.ignore_lines));
  }
  return make_program_target(arguments.command, faults, ignored_lines(arguments.ignore_lines));
}

int run(const ExploreArguments& arguments, const ExperimentFiles& experiments) {
  auto problems = problems_of(arguments);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  const auto& rehearsal = arguments.rehearsal;
  const auto target = make_target(arguments, experiments);
  sim::Trial first{.num_ranks = arguments.ranks(),
                   .max_steps = arguments.max_steps.value_or(0),
                   .schedule = rehearsal.rank_schedule()};
  // A trial refers to faults by their index in the file, so that shrinking removes indices and never edits faults.
  if (!rehearsal.faults.empty()) {
    first.faults.resize(sim::read_faults(rehearsal.faults, first.num_ranks).size());
    std::iota(first.faults.begin(), first.faults.end(), 0);
  }
  // The judge keeps its reference runs, so it must be the same for all trials.
  TrialJudge judge(*target);
  first.has_steps = target->has_steps();
  const auto exploration =
      sim::explore(first, arguments.schedules, [&](const sim::Trial& trial) { return judge(trial); });
  // Findings are printed only if nothing failed: shrinking runs fewer steps and ranks, and their findings would be
  // wrong for the run that was requested.
  if (!exploration.failure)
    for (const auto& finding : judge.findings()) print_warning(finding);
  Found found{.exit_code = judge.exit_code_of(exploration.signature)};
  if (exploration.signature == "differs") {
    judge(*exploration.failure);  // the last run may have been a smaller trial that passed, so run the failure again
    found.difference = judge.difference();
  }
  return report(arguments, *target, first, exploration, found);
}

}  // namespace

int explore_main(int argc, char** argv, const ExperimentFiles& experiments) {
  ExploreArguments arguments;
  arguments.rehearsal.schedule = "random";
  arguments.command = take_program("sim-run explore", argc, argv);
  CLI::App app("Runs a program under many schedules, and shrinks the first that fails or computes a different result.",
               "sim-run explore");
  add_run_options(app, arguments);
  for (const auto* option : kSingleRunOptions) app.get_option(option)->group("");  // not in the help
  app.add_option("--schedules", arguments.schedules, "Number of schedules to run")->capture_default_str();
  app.add_option(
         "--ignore-lines", arguments.ignore_lines,
         "Lines of a program's output that are not compared: those in which this regular expression is found, in "
         "any case; \"\" compares all. The default finds times, durations and rates")
      ->allow_extra_args(false);
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_option("--max-steps", arguments.max_steps, "Stop training after this many micro-batches");
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return run(arguments, experiments);
}

}  // namespace accel::programs
