// `accel data-check`: the command line of experiments/data_check. It checks one loader described by flags, or both
// loaders of an experiment, and needs no GPU and no launch.

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/plan_options.hpp"
#include "sim/programs/experiments/data_check.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/task.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  PlanRequest request;
  std::string experiment, ranks = "1-64";
  std::vector<std::string> overrides;
  bool json = false, strict = false;
};

// Parses a number of ranks. Returns nothing if the text is not a number or the simulator cannot hold that many ranks.
std::optional<int> read_ranks(std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && ranks >= 1 && ranks <= sim::World::kMaxRanks ? std::optional(ranks) : std::nullopt;
}

// Parses numbers of ranks such as "1-64", "4" or "1,2,4-8". Returns them in ascending order without duplicates, and
// adds what is wrong with the text to `problems`.
std::vector<int> parse_rank_counts(const std::string& text, std::vector<std::string>& problems) {
  std::set<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const auto first = read_ranks(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : read_ranks(part.substr(dash + 1));
    if (!first || !last || *first > *last) {
      problems.push_back(
          fmt::format("--ranks: '{}' is not a number of ranks; expected numbers from 1 to {} such as 1-64 or 1,2,4-8",
                      part, sim::World::kMaxRanks));
      continue;
    }
    for (int ranks = *first; ranks <= *last; ++ranks) numbers.insert(ranks);
  }
  if (text.empty()) problems.emplace_back("--ranks: empty; expected numbers such as 1-64");
  return {numbers.begin(), numbers.end()};
}

// The experiment is read for one rank: its split_batches check would reject numbers of ranks that this command is meant
// to examine.
std::vector<LoaderCheck> check_experiment(const Arguments& arguments, const std::vector<int>& numbers_of_ranks) {
  const auto experiment = read_experiment(arguments.experiment, arguments.overrides, /*num_ranks=*/1);
  const auto task = load_task(experiment);
  const auto& config = experiment.accelerator.dataloader_config;
  const auto problems = accel::problems_of(config);
  check_config(problems.empty(), "{}", listed(problems, "; "));
  PlanRequest both{config};
  both.split_batches = experiment.accelerator.splits();
  auto training = both, evaluation = both;
  training.length = task.train.size();
  training.batch_size = experiment.batch_size;
  training.drop_last = experiment.drop_last;
  evaluation.length = task.eval.size();
  evaluation.batch_size = experiment.eval_batch_size;
  return {check_loader("training", training, numbers_of_ranks),
          check_loader("evaluation", evaluation, numbers_of_ranks)};
}

// Collects the problems of all flags before anything is read, so that they are reported in one message.
std::vector<LoaderCheck> check(const std::vector<const CLI::Option*>& required, const Arguments& arguments) {
  std::vector<std::string> problems = problems_of(arguments.request);
  const auto numbers_of_ranks = parse_rank_counts(arguments.ranks, problems);
  const bool is_experiment = !arguments.experiment.empty();
  for (const auto* option : required) {
    if (!is_experiment && option->count() == 0)
      problems.push_back(fmt::format("{} is missing; expected it, or an experiment file", option->get_name()));
  }
  if (!is_experiment && !arguments.overrides.empty())
    problems.emplace_back("--set: needs an experiment file to override; pass one or leave --set out");
  check_config(problems.empty(), "data-check: {}", listed(problems, "\n"));
  if (is_experiment) return check_experiment(arguments, numbers_of_ranks);
  return {check_loader("loader", arguments.request, numbers_of_ranks)};
}

// --- output ----------------------------------------------------------------------------------------------------------

// An impossible configuration keeps its row, because the finding below refers to its number of ranks.
std::string row_of(const RanksCheck& check) {
  if (!check.counts) return fmt::format("{:>6} {:>15}\n", check.ranks, "error");
  const auto& counts = *check.counts;
  const auto steps = counts.has_uneven_steps() ? fmt::format("{} or {}", counts.steps_min, counts.steps_max)
                                               : fmt::format("{}", counts.steps_max);
  return fmt::format("{:>6} {:>15} {:>13} {:>11} {:>11} {:>16}\n", check.ranks, steps, counts.samples_per_step,
                     counts.duplicated, counts.dropped, counts.ranks_without_batch);
}

// Keys are read by scripts and do not change. Counts are absent if the configuration is an error for this number of
// ranks.
Json json_of(const RanksCheck& check) {
  Json row = {{"ranks", check.ranks}};
  if (const auto& counts = check.counts) {
    row.update({{"steps_min", counts->steps_min},
                {"steps_max", counts->steps_max},
                {"samples_per_step", counts->samples_per_step},
                {"duplicated", counts->duplicated},
                {"dropped", counts->dropped},
                {"ranks_without_batch", counts->ranks_without_batch}});
  }
  row["findings"] = Json::array();
  for (const auto& [kind, text] : check.findings) row["findings"].push_back({{"kind", kind}, {"text", text}});
  return row;
}

// All tables come first and the findings after them, so that the explanations stay on the screen.
std::string data_check_table(const std::vector<LoaderCheck>& checks) {
  std::string table, findings;
  for (const auto& check : checks) {
    table += fmt::format("{}: {} samples, batch_size {}\n", check.name, check.request.length, check.request.batch_size);
    table += fmt::format("{:>6} {:>15} {:>13} {:>11} {:>11} {:>16}\n", "ranks", "steps", "samples/step", "duplicated",
                         "dropped", "without a batch");
    for (const auto& of_ranks : check.of_ranks) {
      table += row_of(of_ranks);
      for (const auto& finding : of_ranks.findings) {
        findings += fmt::format("{}, {} rank{}: {}\n", check.name, of_ranks.ranks, of_ranks.ranks == 1 ? "" : "s",
                                finding.text);
      }
    }
    table += "\n";
  }
  return table + (findings.empty() ? "no findings\n" : findings);
}

Json data_check_json(const std::vector<LoaderCheck>& checks) {
  Json loaders = Json::array();
  for (const auto& check : checks) {
    Json rows = Json::array();
    for (const auto& of_ranks : check.of_ranks) rows.push_back(json_of(of_ranks));
    loaders.push_back({{"name", check.name},
                       {"length", check.request.length},
                       {"batch_size", check.request.batch_size},
                       {"ranks", rows}});
  }
  return {{"loaders", loaders}};
}

}  // namespace

int data_check_main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Reports duplicated and dropped samples and uneven steps for a range of numbers of ranks, and what to change.",
      "accel data-check");
  const auto required = add_loader_options(app, arguments.request);
  const auto of_loader = app.get_options([](const CLI::Option* option) { return option->get_name() != "--help"; });
  app.add_option("--ranks", arguments.ranks, "Numbers of ranks, as in 1-64 or 1,2,4-8")->capture_default_str();
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--json", arguments.json, "JSON instead of a table");
  app.add_flag("--strict", arguments.strict, "Exit code 1 if there is a finding");
  auto* experiment =
      app.add_option("EXPERIMENT", arguments.experiment,
                     "Experiment file (YAML) of sim-run, whose training and evaluation loaders are checked");
  // An experiment defines its loaders completely, so flags that describe a loader would contradict it.
  for (auto* option : of_loader) experiment->excludes(option);
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  const auto checks = check(required, arguments);
  std::cout << (arguments.json ? data_check_json(checks).dump() + "\n" : data_check_table(checks)) << std::flush;
  if (!std::cout) throw Error("cannot write the answer to standard output");
  return arguments.strict && has_findings(checks) ? kFailure : kSuccess;
}

}  // namespace accel::programs
