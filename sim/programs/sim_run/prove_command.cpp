// `sim-run prove`: runs one program on one rank and under layouts of a mesh, and names the first tensor that differs.
// The comparison is first_disagreement of layout_proof.hpp; this file chooses the layouts, runs them and reports.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/mesh/mesh.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/layouts/layout_proof.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/comparison_side.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

struct ProveArguments {
  int ranks = 8;
  std::string layouts = "all", against = "one";
  std::vector<std::string> overrides;
  std::int64_t max_steps = 2;
  bool json = false;
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
    for_each_size(layout, [&](const Field& field, int& size) {
      auto name = std::string(field.name);
      name.resize(name.size() - std::string_view("_size").size());
      if (const auto value = reader.optional<int>(name.c_str())) size = *value;
    });
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
  return problems;
}

// The mesh reaches the Accelerator through the environment, as from `accel launch`. Batches are split, so that every
// layout reads the same samples per step.
std::vector<std::string> environment_of(const ParallelismConfig& layout) {
  std::vector<std::string> variables{"ACCELERATE_SPLIT_BATCHES=true", "ACCELERATE_USE_PARALLELISM_CONFIG=true"};
  for_each_size(layout,
                [&](const Field& field, int size) { variables.push_back(fmt::format("{}={}", field.variable, size)); });
  return variables;
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

// Whether the rank that failed had not prepared a model yet. Others may have been released before they had: so the
// error decides, whose text begins with "rank 3: " or, if ranks failed alike, "ranks 0-3: ".
bool failed_before_prepare(const RecordedRun& run, const std::string& error) {
  static const std::regex kFailed("(?:^|\\n|error: )ranks? (\\d+)[^:\\n]*: (?!released)");
  std::smatch found;
  if (std::regex_search(error, found, kFailed)) {
    const int rank = std::stoi(found[1]);
    if (rank < run.num_ranks()) return run.keys(rank).empty();
  }
  for (int rank = 0; rank < run.num_ranks(); ++rank) {
    if (run.keys(rank).empty()) return true;
  }
  return false;
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

class Prover {
 public:
  explicit Prover(const ProveArguments& arguments) : arguments_(arguments) {
    if (arguments.experiment.empty()) return;
    const auto experiment = read_experiment(arguments.experiment, arguments.overrides, arguments.ranks);
    overrides_ = arguments.overrides;
    // Complete accumulation windows: an optimizer step is compared, too.
    const auto window = micro_batches_of(experiment.accelerator);
    overrides_.push_back(fmt::format("max_steps={}", (arguments.max_steps + window - 1) / window * window));
    if (experiment.model.name == "gpt") {
      overrides_.emplace_back("model.dtype=float64");
      overrides_.emplace_back("model.dropout=0");  // ranks of a mesh would drop other elements
    }
    // The experiment's sizes are per rank.
    overrides_.push_back(fmt::format("batch_size={}", experiment.batch_size * arguments.ranks));
    overrides_.push_back(fmt::format("eval_batch_size={}", experiment.eval_batch_size * arguments.ranks));
  }

  SideRun run(const ParallelismConfig& layout, int ranks, const std::string& folder) const {
    const ComparedProgram program{
        .experiment = arguments_.experiment,
        .command = arguments_.command,
        .num_ranks = ranks,
        .values = true,
        .max_steps = arguments_.command.empty() ? std::nullopt : std::optional(arguments_.max_steps),
        .variables = environment_of(layout)};
    return run_side(program, {.letter = "", .backend = "sim", .overrides = overrides_}, folder);
  }

  Outcome prove(const ParallelismConfig& layout, const RecordedRun& one, const std::string& folder) const {
    Outcome outcome{.layout = name_of(layout), .verdict = "equal"};
    const auto side = run(layout, arguments_.ranks, folder);
    const RecordedRun mesh(folder, arguments_.ranks);
    outcome.disagreement = first_disagreement(one, mesh, layout);
    // A failed run lacks what it would have computed later.
    if (side.exit_code != kSuccess && side.exit_code != kDiagnosed && outcome.disagreement &&
        outcome.disagreement->is_absent)
      outcome.disagreement.reset();
    if (outcome.disagreement) {
      outcome.verdict = "different";
      outcome.text = describe(*outcome.disagreement);
    } else if (side.exit_code != kSuccess) {
      // A layout that a model does not support is an error before `prepare` returns, on the rank that throws it; others
      // may have come further by then.
      const bool is_error = side.exit_code == kFailure || side.exit_code == kUsage;
      const bool is_internal = side.error.find("internal error") != std::string::npos;
      outcome.verdict = failed_before_prepare(mesh, side.error) && is_error && !is_internal ? "refused" : "failed";
      outcome.text = side.error;
    }
    std::filesystem::remove_all(folder);
    return outcome;
  }

 private:
  const ProveArguments& arguments_;
  std::vector<std::string> overrides_;
};

std::string line_of(const Outcome& outcome) {
  auto text = outcome.text.substr(0, outcome.text.find_last_not_of('\n') + 1);
  return text.empty() ? fmt::format("{}: {}", outcome.layout, outcome.verdict)
                      : fmt::format("{}: {}: {}", outcome.layout, outcome.verdict, text);
}

int run(const ProveArguments& arguments) {
  const auto problems = problems_of(arguments);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  const auto layouts =
      arguments.layouts == "all" ? all_layouts(arguments.ranks) : read_layouts(arguments.layouts, arguments.ranks);
  const Prover prover(arguments);
  const TemporaryFolder folder;
  const auto folder_of_one = folder.path() + "/one";
  const auto side = prover.run({}, 1, folder_of_one);
  if (side.exit_code != kSuccess) {
    std::cerr << "sim-run: the run on one rank failed; its standard error:\n" << side.error << std::flush;
    return side.exit_code <= kDiagnosed ? side.exit_code : kFailure;
  }
  const RecordedRun one(folder_of_one, 1);
  if (one.keys(0).empty())
    throw Error("prove: nothing was recorded; expected a program that prepares a model and calls accelerator.backward");
  const auto& keys = one.keys(0);
  if (std::none_of(keys.begin(), keys.end(), [](const auto& key) { return key.kind == "parameter"; }))
    throw Error(
        "prove: no optimizer step was recorded, so that clipping and updates cannot be compared; expected a program "
        "that "
        "calls step() of a prepared optimizer, with enough samples for one step of all ranks");
  const ProofProgress progress(layouts.size());
  Json results = Json::array();
  std::map<std::string, int> counts;
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    progress.begin(index, name_of(layouts[index]));
    const auto outcome = prover.prove(layouts[index], one, fmt::format("{}/{}", folder.path(), index));
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

int prove_main(int argc, char** argv) {
  ProveArguments arguments;
  arguments.command = take_program("sim-run prove", argc, argv);
  check_config(
      arguments.command.empty() || !python_program(arguments.command),
      "prove: lays out models of <accel/parallel.hpp>, which Python programs do not have; compare two backends "
      "by `sim-run compare -- python`");
  CLI::App app(
      "Runs a program on one rank and on meshes of ranks, and compares outputs, input gradients, weight gradients and "
      "updated weights module by module. A program's batch size is that of all ranks. Exit code 0: all layouts that "
      "the model accepts are equal; 1: one differs.",
      "sim-run prove");
  app.add_option("--ranks", arguments.ranks, "Number of ranks, 2 to 256")->capture_default_str();
  app.add_option("--layouts", arguments.layouts, "all, or a file (YAML) with a list such as {dp_replicate: 2, tp: 4}")
      ->capture_default_str();
  app.add_option("--against", arguments.against, "one: the same program on one rank")->capture_default_str();
  app.add_option("--max-steps", arguments.max_steps,
                 "Stop training after this many micro-batches, and at least one optimizer step")
      ->capture_default_str();
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--json", arguments.json, "Print the results as JSON");
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return run(arguments);
}

}  // namespace accel::programs
