// `sim-run prove`: runs one program on one rank and under layouts of a mesh, and names the first tensor that differs.
// Programs in C++ are compared by first_disagreement of layout_proof.hpp, those in Python by simranks/proof.py; this
// file chooses the layouts, runs them and reports.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/mesh/mesh.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/layouts/disagreement.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/comparison_side.hpp"
#include "sim/programs/sim_run/mesh_environment.hpp"
#include "sim/programs/sim_run/python_proof.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

struct ProveArguments {
  int ranks = 8;
  std::string layouts = "all", against = "one";
  std::vector<std::string> axes;
  std::vector<std::string> overrides;
  std::int64_t max_steps = 2;
  bool json = false, map_cuda = false;
  std::string experiment;
  std::vector<std::string> command;
};

// A file has a list of mappings, such as {dp_replicate: 2, tp: 4}; what is not named is 1.
std::vector<ParallelismConfig> read_layouts(const std::string& path, int ranks) {
  YamlProblems problems(path);
  const auto nodes = yaml_of(read_text(path), path);
  check_config(nodes.IsSequence() && nodes.size() > 0,
               "{}: expected a list of layouts, such as {{dp_replicate: 2, tp: 4}}", path);
  std::vector<ParallelismConfig> layouts;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    check_config(nodes[index].IsMap(), "{}: entry {} is no mapping, such as {{dp_replicate: 2, tp: 4}}", path, index);
    YamlReader reader(nodes[index], fmt::format("{}.", index), problems);
    ParallelismConfig layout;
    for (const auto& axis : mesh_axes()) {
      if (const auto value = reader.optional<int>(std::string(axis.name))) layout.*axis.size = *value;
    }
    reader.finish_keys();
    if (problems.any()) continue;
    try {
      check_mesh(layout, ranks);
    } catch (const ConfigError& error) {
      problems.add(nodes[index].Mark().line, error.what());
    }
    layouts.push_back(layout);
  }
  problems.throw_if_any();
  return layouts;
}

std::vector<std::string> problems_of(const ProveArguments& arguments) {
  std::vector<std::string> problems;
  if (arguments.ranks < 2 || arguments.ranks > 256)
    problems.push_back(fmt::format("--ranks: expected 2 to 256, got {}", arguments.ranks));
  if (arguments.experiment.empty() == arguments.command.empty())
    problems.emplace_back("prove: expected an experiment file or `-- PROGRAM [ARGS...]`");
  if (arguments.against != "one")
    problems.push_back(fmt::format("--against: expected one, got '{}'", arguments.against));
  if (arguments.max_steps < 1)
    problems.push_back(fmt::format("--max-steps: expected 1 or more, got {}", arguments.max_steps));
  if (!arguments.command.empty() && !arguments.overrides.empty())
    problems.emplace_back("--set: only experiments support this option; leave it out");
  const RehearsalOptions rehearsal{.map_cuda = arguments.map_cuda};
  if (auto problem = problem_of_map_cuda(rehearsal); !is_python_program(arguments.command) && !problem.empty())
    problems.push_back(std::move(problem));
  return problems;
}

struct Outcome {
  std::string layout;
  std::string verdict;  // "equal", "different", "refused", "failed"
  std::string text = {};
  std::optional<Disagreement> disagreement = {};
};

Json json_of(const Outcome& outcome) {
  Json json{{"layout", outcome.layout}, {"verdict", outcome.verdict}};
  if (!outcome.text.empty()) json["text"] = outcome.text;
  if (const auto& found = outcome.disagreement) {
    json["step"] = found->what.step;
    json["tensor"] = found->what.kind;
    json["module"] = found->what.name;
    json["rank"] = found->rank;
    json["cause"] = found->cause;
    json["collective"] = found->collective;
    json["missing"] = found->missing;
    json["error"] = found->error;
  }
  return json;
}

// Whether the rank has computed nothing: it has prepared no model.
bool is_empty(const RankRecording& recording) {
  return std::all_of(recording.begin(), recording.end(), [](const auto& seen) { return seen.kind == "variable"; });
}

// Whether the rank that failed had not prepared a model yet. Others may have been released before they had: so the
// error decides, whose text begins with "rank 3: " or, if ranks failed alike, "ranks 0-3: ".
bool failed_before_prepare(const Recording& run, const std::string& error) {
  static const std::regex kFailed("(?:^|\\n|error: )ranks? (\\d+)[^:\\n]*: (?!released)");
  std::smatch found;
  if (std::regex_search(error, found, kFailed)) {
    if (const auto rank = std::stoul(found[1]); rank < run.size()) return is_empty(run[rank]);
  }
  return std::any_of(run.begin(), run.end(), is_empty);
}

// Reports layouts that run, on standard error, once the command takes long.
class ProofProgress {
 public:
  explicit ProofProgress(std::size_t num_layouts) : num_layouts_(num_layouts) {}
  void begin(std::size_t index, const std::string& layout) const {
    if (std::chrono::steady_clock::now() - begin_ < std::chrono::seconds(10)) return;
    std::cerr << fmt::format("sim-run: prove: layout {} of {}: {}", index + 1, num_layouts_, layout) << std::endl;
  }

 private:
  std::size_t num_layouts_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Without the traceback of Python, and who reports it.
std::string first_line(const std::string& error) {
  constexpr std::string_view kReporter = "sim-run: ";
  const auto line = error.substr(0, error.find('\n'));
  return line.starts_with(kReporter) ? line.substr(kReporter.size()) : line;
}

class Prover {
 public:
  Prover(const ProveArguments& arguments, const ExperimentFiles& experiments)
      : arguments_(arguments), experiments_(experiments), is_python_(is_python_program(arguments.command)) {
    if (!arguments.experiment.empty())
      overrides_ = experiments.overrides_of_proof(arguments.experiment, arguments.overrides, arguments.ranks,
                                                  arguments.max_steps);
  }

  SideRun run(const ParallelismConfig& layout, int ranks, const std::string& folder) const {
    const ComparedProgram program{
        .experiment = arguments_.experiment,
        .command = arguments_.command,
        .num_ranks = ranks,
        .values = true,
        .same_work = is_python_,
        .map_cuda = arguments_.map_cuda,
        .max_steps = arguments_.command.empty() ? std::nullopt : std::optional(arguments_.max_steps),
        .variables = environment_of(layout)};
    return run_side(program, {.letter = "", .backend = "sim", .overrides = overrides_}, folder);
  }

  // The meshes to try. Unless axes are given, a Python program supports those whose sizes it reads, and data
  // parallelism.
  std::vector<ParallelismConfig> layouts(const RankRecording& one) const {
    const bool has_all_axes = is_python_ || !arguments_.axes.empty();
    auto all = all_layouts(arguments_.ranks, {.shards = has_all_axes, .pipelines = has_all_axes && !is_python_});
    if (!has_all_axes) return all;
    auto known = arguments_.axes.empty() ? axes_read(one) : arguments_.axes;
    const std::string replicas(mesh_axes()[kReplicateAxis].name), shards(mesh_axes()[kShardAxis].name);
    if (arguments_.axes.empty() && std::find(known.begin(), known.end(), shards) == known.end())
      known.push_back(replicas);
    std::erase_if(all, [&](const auto& layout) {
      return std::any_of(mesh_axes().begin(), mesh_axes().end(), [&](const auto& axis) {
        return layout.*axis.size > 1 && std::find(known.begin(), known.end(), axis.name) == known.end();
      });
    });
    return all;
  }

  LayoutComparer comparer(const std::string& one) const {
    if (!is_python_) return experiments_.compare_with(one);
    return [one, &command = arguments_.command](const std::string& mesh, const ParallelismConfig& layout) {
      return compare_python_runs(command, one, mesh, layout);
    };
  }

  Outcome prove(const ParallelismConfig& layout, const LayoutComparer& compare, const std::string& folder) const {
    Outcome outcome{.layout = name_of(layout), .verdict = "equal"};
    const auto side = run(layout, arguments_.ranks, folder);
    auto compared = compare(folder, layout);
    outcome.disagreement = std::move(compared.disagreement);
    // A failed run lacks what it would have computed later.
    const bool is_explained = side.exit_code != kDiagnosed || is_python_;
    if (side.exit_code != kSuccess && is_explained && outcome.disagreement && outcome.disagreement->is_absent)
      outcome.disagreement.reset();
    if (outcome.disagreement) {
      outcome.verdict = "different";
      outcome.text = describe(*outcome.disagreement);
    } else if (side.exit_code != kSuccess) {
      // A layout that a model does not support is an error before `prepare` returns, on the rank that throws it; others
      // may have come further by then.
      const auto recording = read_recording(folder, arguments_.ranks);
      const bool is_error = side.exit_code == kFailure || side.exit_code == kUsage;
      const bool is_internal = side.error.find("internal error") != std::string::npos;
      outcome.verdict = failed_before_prepare(recording, side.error) && is_error && !is_internal ? "refused" : "failed";
      outcome.text = is_python_ && outcome.verdict == "refused" ? first_line(side.error) : side.error;
    } else {
      outcome.text = listed(compared.not_compared, "; ");
    }
    std::filesystem::remove_all(folder);
    return outcome;
  }

 private:
  const ProveArguments& arguments_;
  const ExperimentFiles& experiments_;
  bool is_python_;
  std::vector<std::string> overrides_;
};

std::string line_of(const Outcome& outcome) {
  auto text = outcome.text.substr(0, outcome.text.find_last_not_of('\n') + 1);
  return text.empty() ? fmt::format("{}: {}", outcome.layout, outcome.verdict)
                      : fmt::format("{}: {}: {}", outcome.layout, outcome.verdict, text);
}

// Throws Error if the run on one rank has nothing to compare.
void check_recording(const RankRecording& one) {
  if (is_empty(one))
    throw Error(
        "prove: nothing was recorded; expected a program that prepares a model and calls accelerator.backward, or in "
        "Python one that calls a module and backward");
  if (std::none_of(one.begin(), one.end(), [](const auto& seen) { return seen.kind == "parameter"; }))
    throw Error(
        "prove: no optimizer step was recorded, so that clipping and updates cannot be compared; expected a program "
        "that calls step() of a prepared optimizer, with enough samples for one step of all ranks");
}

int run(const ProveArguments& arguments, const ExperimentFiles& experiments) {
  const auto problems = problems_of(arguments);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  std::optional<std::vector<ParallelismConfig>> given;
  if (arguments.layouts != "all") given = read_layouts(arguments.layouts, arguments.ranks);
  const Prover prover(arguments, experiments);
  const TemporaryFolder folder;
  const auto folder_of_one = folder.path() + "/one";
  const auto side = prover.run({}, 1, folder_of_one);
  if (side.exit_code != kSuccess) {
    std::cerr << "sim-run: the run on one rank failed; its standard error:\n" << side.error << std::flush;
    return side.exit_code <= kDiagnosed ? side.exit_code : kFailure;
  }
  const auto one = read_recording(folder_of_one, 1).front();
  check_recording(one);
  const auto layouts = given ? *given : prover.layouts(one);
  const auto compare = prover.comparer(folder_of_one);
  const ProofProgress progress(layouts.size());
  Json results = Json::array();
  std::map<std::string, int> counts;
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    progress.begin(index, name_of(layouts[index]));
    const auto outcome = prover.prove(layouts[index], compare, fmt::format("{}/{}", folder.path(), index));
    ++counts[outcome.verdict];
    if (arguments.json)
      results.push_back(json_of(outcome));
    else
      std::cout << line_of(outcome) << std::endl;
  }
  if (arguments.json)
    std::cout << results.dump(2) << std::endl;
  else
    std::cout << fmt::format("{} layouts of {} ranks: {} equal, {} different, {} refused, {} failed", layouts.size(),
                             arguments.ranks, counts["equal"], counts["different"], counts["refused"], counts["failed"])
              << std::endl;
  return counts["different"] + counts["failed"] == 0 && counts["equal"] > 0 ? kSuccess : kFailure;
}

}  // namespace

int prove_main(int argc, char** argv, const ExperimentFiles& experiments) {
  ProveArguments arguments;
  arguments.command = take_program("sim-run prove", argc, argv);
  check_config(experiments.compare_with || arguments.command.empty() || is_python_program(arguments.command),
               "prove: a program that is not Python needs the sim-run that `./dev build` makes in accel's source tree");
  CLI::App app(
      "Runs a program on one rank and on meshes of ranks, and compares outputs, input gradients, weight gradients and "
      "updated weights module by module. A program's batch size is that of all ranks. Exit code 0: all layouts that "
      "the model accepts are equal; 1: one differs.",
      "sim-run prove");
  app.add_option("--ranks", arguments.ranks, "Number of ranks, 2 to 256")->capture_default_str();
  auto* const layouts = app.add_option("--layouts", arguments.layouts,
                                       "all, or a file (YAML) with a list such as {dp_replicate: 2, tp: 4}")
                            ->capture_default_str();
  std::vector<std::string> names;
  for (const auto& axis : mesh_axes()) names.emplace_back(axis.name);
  app.add_option("--axes", arguments.axes,
                 "Only meshes of these axes, such as dp_shard,tp; default: all that are not dp_shard, of a Python "
                 "program those whose sizes it reads")
      ->delimiter(',')
      ->check(CLI::IsMember(names))
      ->excludes(layouts);
  app.add_option("--against", arguments.against, "one: the same program on one rank")->capture_default_str();
  app.add_option("--max-steps", arguments.max_steps,
                 "Stop training after this many micro-batches, and at least one optimizer step")
      ->capture_default_str();
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--json", arguments.json, "Print the results as JSON");
  app.add_flag("--map-cuda", arguments.map_cuda, "Run a Python program for GPUs on CPU ranks");
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return run(arguments, experiments);
}

}  // namespace accel::programs
