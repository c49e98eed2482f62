// `sim-run pipeline`: a pipeline schedule as a table and its proof.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/pipeline/schedules/schedule_check.hpp"
#include "reference/pipeline/schedules/schedule_csv.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/schedule_plot.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using pipeline::Receives;
using pipeline::Schedule;

struct PipelineArguments {
  std::string schedule;
  std::optional<int> stages, ranks, micro_batches;
  std::string send_capacity = "unbounded", receives = "eager";
  std::vector<double> costs{1, 1, 1};
  bool json = false, csv_has_messages = false;
  std::string csv, plot;

  [[nodiscard]] bool is_file() const { return schedule.ends_with(".csv"); }
  [[nodiscard]] std::vector<pipeline::ActionCosts> action_costs() const {
    std::vector<pipeline::ActionCosts> all;
    for (std::size_t index = 0; index + 2 < costs.size(); index += 3)
      all.push_back({costs[index], costs[index + 1], costs[index + 2]});
    return all;
  }
};

// The sizes of a file may be larger than its table: what lacks is then missing.
Schedule read_file(const PipelineArguments& arguments) {
  std::ifstream in(arguments.schedule);
  check_config(in.good(), "--schedule: cannot read {}", arguments.schedule);
  auto schedule = pipeline::read_schedule(in, arguments.schedule);
  if (arguments.ranks)
    check_config(*arguments.ranks == schedule.sizes.ranks, "{}: {} lines; expected one for each of the {} ranks",
                 arguments.schedule, schedule.sizes.ranks, *arguments.ranks);
  schedule.sizes.stages = arguments.stages.value_or(schedule.sizes.stages);
  schedule.sizes.micro_batches = arguments.micro_batches.value_or(schedule.sizes.micro_batches);
  std::vector<std::string> problems;
  check_sizes(schedule.sizes, problems);
  check_config(problems.empty(), "{}: {}", arguments.schedule, listed(problems, "; "));
  return schedule;
}

Schedule make(const PipelineArguments& arguments) {
  const auto& kind = pipeline::schedule_kind(arguments.schedule);
  const int stages = arguments.stages.value();
  return pipeline::make_schedule(arguments.schedule,
                                 {.stages = stages,
                                  .ranks = arguments.ranks.value_or(std::max(1, stages / kind.default_stages_per_rank)),
                                  .micro_batches = arguments.micro_batches.value()});
}

// Throws one ConfigError for all wrong options.
pipeline::CheckOptions checked(const PipelineArguments& arguments) {
  std::vector<std::string> problems;
  std::optional<int> capacity;
  try {
    capacity = RehearsalOptions{.send_capacity = arguments.send_capacity}.max_unreceived_sends();
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  if (arguments.receives != "eager" && arguments.receives != "deferred")
    problems.push_back(fmt::format("--receives {}; expected eager or deferred", arguments.receives));
  if (arguments.costs.empty() || arguments.costs.size() % 3 != 0 ||
      std::any_of(arguments.costs.begin(), arguments.costs.end(),
                  [](double cost) { return !(cost >= 0 && std::isfinite(cost)); }))
    problems.push_back(fmt::format(
        "--costs {}; expected three times from 0 on (forward, gradient of the input, gradients of weights), "
        "or three of each stage",
        fmt::join(arguments.costs, ",")));
  if (!arguments.is_file()) {
    if (!arguments.stages) problems.emplace_back("--stages is missing");
    if (!arguments.micro_batches) problems.emplace_back("--micro-batches is missing");
    try {
      (void)pipeline::schedule_kind(arguments.schedule);
    } catch (const ArgumentError& error) {
      problems.push_back(fmt::format("--schedule: {}, or a file whose name ends in .csv", error.what()));
    }
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return {.send_capacity = capacity,
          .receives = arguments.receives == "eager" ? Receives::kEager : Receives::kDeferred,
          .costs = arguments.action_costs()};
}

// A file has its own number of stages.
void check_number_of_costs(const PipelineArguments& arguments, int stages) {
  const auto given = arguments.costs.size() / 3;
  check_config(given == 1 || given == static_cast<std::size_t>(stages),
               "--costs: those of {} stages; expected three times, or three of each of the {} stages", given, stages);
}

// Messages would hide the computations.
Schedule computations_of(Schedule schedule) {
  for (auto& actions : schedule.actions)
    std::erase_if(actions, [](const auto& action) { return !is_compute(action.kind); });
  return schedule;
}

std::string problem_of(const pipeline::ScheduleCheck& check) {
  return check.cycle.empty() ? check.text() : "deadlock: " + check.text();
}

std::string json_of(const pipeline::ScheduleCheck& check) {
  const auto& schedule = check.run;
  Json actions = Json::array();
  for (const auto& of_rank : schedule.actions) actions.push_back(cells_of(of_rank));
  const Json json{{"schedule", schedule.name},
                  {"stages", schedule.sizes.stages},
                  {"ranks", schedule.sizes.ranks},
                  {"micro_batches", schedule.sizes.micro_batches},
                  {"ok", check.is_ok()},
                  {"problem", problem_of(check)},
                  {"cycle", check.cycle},
                  {"bubble", check.is_ok() ? Json(check.times.bubble) : Json(nullptr)},
                  {"peak_activations", check.peak_activations},
                  {"notes", check.notes},
                  {"actions", std::move(actions)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string table_of(const Schedule& schedule) {
  std::string table;
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank)
    table += fmt::format("rank {}: {}\n", rank, fmt::join(cells_of(schedule.actions[rank]), " "));
  return table;
}

std::string text_of(const pipeline::ScheduleCheck& check, const PipelineArguments& arguments) {
  const auto& schedule = check.run;
  auto text = fmt::format("{}: {} stages on {} ranks, {} micro-batches\n", schedule.name, schedule.sizes.stages,
                          schedule.sizes.ranks, schedule.sizes.micro_batches);
  text += table_of(computations_of(schedule));
  text += fmt::format("live activations at most: {}\n", fmt::join(check.peak_activations, " "));
  if (check.is_ok())
    text += fmt::format("bubble: {:.2f} % (costs {})\n", 100 * check.times.bubble, fmt::join(arguments.costs, ","));
  for (const auto& note : check.notes) text += fmt::format("note: {}\n", note);
  const auto rules = fmt::format("send capacity {}, receives {}", arguments.send_capacity, arguments.receives);
  return text + (check.is_ok() ? fmt::format("complete and free of deadlock ({})\n", rules)
                               : fmt::format("{} ({})\n", problem_of(check), rules));
}

int answer(const PipelineArguments& arguments) {
  const auto options = checked(arguments);
  const auto schedule = arguments.is_file() ? read_file(arguments) : make(arguments);
  check_number_of_costs(arguments, schedule.sizes.stages);
  const auto check = check_schedule(schedule, options);
  if (!arguments.csv.empty()) {
    std::ostringstream out;
    write_schedule(out, arguments.csv_has_messages ? check.run : computations_of(check.run));
    write_text(arguments.csv, out.str());
  }
  if (!arguments.plot.empty()) write_text(arguments.plot, schedule_svg(check.run, check.times));
  std::cout << (arguments.json ? json_of(check) : text_of(check, arguments)) << std::flush;
  return check.is_ok() ? kSuccess : kFailure;
}

}  // namespace

int pipeline_main(int argc, char** argv) {
  PipelineArguments arguments;
  std::vector<std::string> names;
  for (const auto& kind : pipeline::schedule_kinds()) names.push_back(fmt::format("{} ({})", kind.name, kind.summary));
  CLI::App app(
      "Prints a pipeline schedule, and proves that it computes everything once and cannot deadlock. Exit code 1: it is "
      "incomplete, or its ranks wait for each other.",
      "sim-run pipeline");
  app.add_option("--schedule", arguments.schedule,
                 fmt::format("A CSV file of torch.distributed.pipelining, or {}", fmt::join(names, ", ")))
      ->required();
  app.add_option("--stages", arguments.stages, "Parts of the model");
  app.add_option(
      "--ranks", arguments.ranks,
      "Ranks of the pipeline (default: stages, or half of them for a schedule with several stages per rank)");
  app.add_option("--micro-batches", arguments.micro_batches, "Parts of a batch");
  app.add_option("--send-capacity", arguments.send_capacity,
                 "Messages from one rank to another that may wait for their receives: 0 (a send waits for its "
                 "receive), 1, ..., or unbounded")
      ->capture_default_str();
  app.add_option("--receives", arguments.receives,
                 "When receives are posted: eager (at their place in the table) or deferred (before the action that "
                 "needs them)")
      ->capture_default_str();
  app.add_option("--costs", arguments.costs,
                 "Times of a forward, of a gradient of the input and of gradients of weights: F,B,W, of every stage or "
                 "of one stage after the other")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "Print one JSON object");
  app.add_option("--csv", arguments.csv,
                 "Write the computations to this file, as torch.distributed.pipelining reads them");
  app.add_flag("--csv-messages", arguments.csv_has_messages, "Also write the messages (its format compute_comms)");
  app.add_option("--plot", arguments.plot, "Draw the schedule into this SVG file");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return answer(arguments);
}

}  // namespace accel::programs
