// `sim-run compare`: runs one program on two backends and prints where they diverge first, or compares two timelines.
// first_difference of recording.hpp; this file checks the options, runs the sides and reports.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "backends/launch/process.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/comparison/timelines.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/comparison_side.hpp"
#include "sim/report/comparison_report.hpp"
#include "sim/report/timeline/timeline_reader.hpp"

namespace accel::programs {
namespace {

constexpr std::size_t kShownBefore = 10;  // equal observations before the difference that the page lists

struct CompareArguments {
  std::string a = "sim", b = "gloo";
  int ranks = 4;
  std::vector<std::string> overrides, overrides_of_b;
  std::optional<std::int64_t> max_steps;
  bool tensors = false, map_cuda = false;
  std::string report, experiment;
  std::vector<std::string> command;

  [[nodiscard]] bool uses_python() const { return a == "python" || b == "python"; }
};

// Overrides of a side: later ones win, so --set-b comes last.
ComparisonSide side_of(const CompareArguments& arguments, bool is_b) {
  ComparisonSide side{
      .letter = is_b ? "b" : "a", .backend = is_b ? arguments.b : arguments.a, .overrides = arguments.overrides};
  if (arguments.max_steps) side.overrides.push_back(fmt::format("max_steps={}", *arguments.max_steps));
  if (is_b)
    side.overrides.insert(side.overrides.end(), arguments.overrides_of_b.begin(), arguments.overrides_of_b.end());
  return side;
}

// The checks of a run on each backend, without those that both sides share.
void add_problems_of_backends(const CompareArguments& arguments, std::vector<std::string>& problems) {
  RunOptions shared{.rank_counts = {arguments.ranks}};
  shared.rehearsal.report = arguments.report;
  for (auto& problem : problems_of(shared)) problems.push_back(std::move(problem));
  for (const auto& [option, backend] : {std::pair("--a", arguments.a), {"--b", arguments.b}}) {
    if (backend == "python") {
      if (const auto problem = problem_of_python(); !problem.empty() && arguments.command.empty())
        problems.push_back(fmt::format("{} python: {}", option, problem));
    } else if (backend != "sim") {
      for (const auto& problem : problems_of(RunOptions{.rank_counts = {arguments.ranks}, .backend = backend}))
        problems.push_back(problem.starts_with("--backend") ? option + problem.substr(std::strlen("--backend"))
                                                            : fmt::format("{} {}: {}", option, backend, problem));
    }
  }
}

std::vector<std::string> problems_of(const CompareArguments& arguments) {
  std::vector<std::string> problems;
  if (arguments.a == arguments.b && arguments.overrides_of_b.empty()) {
    problems.push_back(
        fmt::format("--a {} --b {}: both sides are equal; expected two backends, or --set-b for an experiment",
                    arguments.a, arguments.b));
  }
  if (arguments.experiment.empty() == arguments.command.empty())
    problems.emplace_back("compare: expected an experiment file or `-- PROGRAM [ARGS...]`");
  if (arguments.max_steps.value_or(1) < 1)
    problems.push_back(fmt::format("--max-steps: expected 1 or more, got {}", *arguments.max_steps));
  if (!arguments.command.empty()) {
    if (!arguments.overrides.empty() || !arguments.overrides_of_b.empty() || arguments.max_steps)
      problems.emplace_back("--set, --set-b, --max-steps: only experiments support these options; leave them out");
    if (arguments.uses_python())
      problems.emplace_back("python: only experiments run under Python's Accelerate; give an experiment file");
  }
  if (arguments.tensors && arguments.uses_python()) {
    problems.emplace_back(
        "--tensors: Python's side records losses and a hash of the final parameters only; leave --tensors out");
  }
  const bool is_python = is_python_program(arguments.command);
  if (auto problem = problem_of_map_cuda({.map_cuda = arguments.map_cuda}); !is_python && !problem.empty())
    problems.push_back(std::move(problem));
  add_problems_of_backends(arguments, problems);
  return problems;
}

std::size_t count_observations(const Recording& recording) {
  std::size_t count = 0;
  for (const auto& rank : recording) count += rank.size();
  return count;
}

std::vector<double> losses_of(const RankRecording& rank) {
  std::vector<double> losses;
  for (const auto& observation : rank) {
    if (observation.kind == "loss") losses.push_back(std::strtod(observation.value.c_str(), nullptr));
  }
  return losses;
}

sim::ComparedObservation row_of(const Observation* a, const Observation* b) {
  const auto text = [](const Observation* own) {
    return own == nullptr ? "none" : own->detail.empty() ? own->value : own->detail;
  };
  const auto& any = a != nullptr ? *a : *b;
  auto row = sim::ComparedObservation{.step = any.step, .what = describe(any), .a = text(a), .b = text(b)};
  if (a != nullptr && b != nullptr && describe(*a) != describe(*b)) {
    row.a = fmt::format("{}: {}", describe(*a), row.a);
    row.b = fmt::format("{}: {}", describe(*b), row.b);
  }
  return row;
}

sim::ComparisonReport page_of(const CompareArguments& arguments, const Recording& a, const Recording& b) {
  const bool is_program = !arguments.command.empty();
  const std::filesystem::path file(is_program ? arguments.command.front() : arguments.experiment);
  sim::ComparisonReport page{.title = fmt::format("{} on {} and {}", file.stem().string(), arguments.a, arguments.b),
                             .name_of_a = side_of(arguments, false).name(),
                             .name_of_b = side_of(arguments, true).name()};
  page.facts = {{"ranks", std::to_string(arguments.ranks)},
                {"compared", arguments.uses_python() ? "traces"
                             : arguments.tensors     ? "steps and tensors"
                                                     : "steps"},
                {is_program ? "program" : "experiment",
                 is_program ? fmt::format("{}", fmt::join(arguments.command, " ")) : arguments.experiment}};
  const auto of_both = side_of(arguments, false).overrides;
  for (const auto& text : of_both) page.facts.emplace_back("set", text);
  for (const auto& text : arguments.overrides_of_b) page.facts.emplace_back("set on b", text);
  for (int rank = 0; rank < arguments.ranks; ++rank) {
    const auto own = first_difference(a[rank], b[rank], rank);
    page.ranks.push_back(
        {.observations = static_cast<std::int64_t>(std::max(a[rank].size(), b[rank].size())),
         .equal = static_cast<std::int64_t>(own ? own->place : a[rank].size()),
         .difference = own ? fmt::format("step {}: {}", own->step, describe(own->a ? *own->a : *own->b)) : ""});
  }
  page.losses = losses_of(a.front());
  const auto difference = first_difference(a, b);
  if (!difference) return page;
  page.difference = describe(*difference, page.name_of_a, page.name_of_b);
  const auto &of_a = a[difference->rank], &of_b = b[difference->rank];
  for (auto place = difference->place - std::min(difference->place, kShownBefore); place < difference->place; ++place)
    page.around.push_back(row_of(&of_a[place], &of_b[place]));
  page.around.push_back(row_of(difference->a ? &*difference->a : nullptr, difference->b ? &*difference->b : nullptr));
  return page;
}

// A side that failed has no result to compare, so its own exit code counts: see Note [Exit codes].
int report_failure(const ComparisonSide& side, const SideRun& run) {
  std::cerr << fmt::format("sim-run: side {} {}; its standard error:\n{}", side.name(),
                           launcher::describe_exit_code(run.exit_code), run.error)
            << std::flush;
  return run.exit_code <= kDiagnosed ? run.exit_code : kFailure;
}

int run(const CompareArguments& arguments, const ExperimentFiles& experiments) {
  const auto problems = problems_of(arguments);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  const ComparisonSide sides[] = {side_of(arguments, false), side_of(arguments, true)};
  for (const auto& side : sides) {
    if (!arguments.experiment.empty()) experiments.check(arguments.experiment, side.overrides, arguments.ranks);
  }
  const ComparedProgram program{.experiment = arguments.experiment,
                                .command = arguments.command,
                                .num_ranks = arguments.ranks,
                                .tensors = arguments.tensors,
                                .uses_traces = arguments.uses_python(),
                                .map_cuda = arguments.map_cuda};
  const TemporaryFolder folder;
  SideRun runs[2];
  for (int index = 0; index < 2; ++index) {
    const auto& side = sides[index];
    runs[index] = run_side(program, side, folder.path() + "/" + side.letter);
    if (runs[index].exit_code != kSuccess) return report_failure(side, runs[index]);
  }
  const auto count = count_observations(runs[0].recording);
  if (count + count_observations(runs[1].recording) == 0) {
    throw Error(
        "compare: neither side recorded anything; expected a program that prepares a model and calls "
        "accelerator.backward");
  }
  const auto difference = first_difference(runs[0].recording, runs[1].recording);
  if (!arguments.report.empty()) {
    std::filesystem::create_directories(arguments.report);
    write_text(arguments.report + "/index.html",
               sim::comparison_page(page_of(arguments, runs[0].recording, runs[1].recording)));
  }
  std::cout << (difference ? "different: " + describe(*difference, sides[0].name(), sides[1].name())
                           : fmt::format("equal: {} rank{}, {} observations on each side", arguments.ranks,
                                         arguments.ranks == 1 ? "" : "s", count))
            << std::endl;
  return difference ? kFailure : kSuccess;
}

// Both files come from --timeline of sim-run or accel launch.
int run_on_timelines(const std::vector<std::string>& files) {
  std::vector<sim::Timeline> timelines;
  std::vector<std::string> problems;
  for (const auto& file : files) {
    try {
      timelines.push_back(sim::read_timeline(read_text(file)));
    } catch (const ConfigError& error) {
      problems.push_back(fmt::format("--timelines: {}: {}; expected a file of --timeline", file, error.what()));
    }
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  const auto comparison = compare_timelines(timelines[0], timelines[1]);
  std::cout << comparison.text << std::flush;
  return comparison.are_equal ? kSuccess : kFailure;
}

}  // namespace

int compare_main(int argc, char** argv, const ExperimentFiles& experiments) {
  CompareArguments arguments;
  arguments.command = take_program("sim-run compare", argc, argv);
  CLI::App app(
      "Runs a program on two backends and prints the first difference: rank, step, and with --tensors the "
      "module. Exit code 0: equal; 1: different.",
      "sim-run compare");
  const auto is_backend =
      CLI::IsMember(std::vector<std::string>(std::begin(kComparisonBackends), std::end(kComparisonBackends)));
  app.add_option("--a", arguments.a,
                 "First backend: sim, gloo, nccl, or python (an experiment under Python's Accelerate)")
      ->check(is_backend)
      ->capture_default_str();
  app.add_option("--b", arguments.b, "Second backend")->check(is_backend)->capture_default_str();
  app.add_option("--ranks", arguments.ranks, "Number of ranks")->capture_default_str();
  app.add_flag("--tensors", arguments.tensors,
               "Also compare the output and the input gradient of each module, and each parameter");
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_option("--set-b", arguments.overrides_of_b, "key.path=value: override one value on side b only; repeatable")
      ->allow_extra_args(false);
  app.add_option("--max-steps", arguments.max_steps, "Stop training after this many micro-batches");
  app.add_flag("--map-cuda", arguments.map_cuda, "Run a Python program for GPUs on CPU ranks, on side sim");
  app.add_option("--report", arguments.report, "Write an HTML page about the comparison into this folder");
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program");
  std::vector<std::string> timelines;
  app.add_option("--timelines", timelines,
                 "A B: instead of running a program, set two files of --timeline side by side, such as one of "
                 "a real job and a predicted one")
      ->expected(2);
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  if (!timelines.empty()) {
    check_config(arguments.experiment.empty() && arguments.command.empty(),
                 "--timelines: expected no experiment and no program beside it");
    return run_on_timelines(timelines);
  }
  return run(arguments, experiments);
}

}  // namespace accel::programs
