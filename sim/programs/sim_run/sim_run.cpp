// sim-run: trains an experiment described by a YAML file, or runs a user program, on simulated or real ranks. Simulated
// ranks are threads of this process; for real ranks the program executes itself once per rank (--worker-dir).
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backends/launch/local_launch.hpp"
#include "backends/launch/output_writer.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/memory_pools.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/comparison/recorder.hpp"
#include "sim/programs/entry/real_rank.hpp"
#include "sim/programs/experiments/train_experiment.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/report_run.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/programs/sim_run/experiment_target.hpp"
#include "sim/programs/sim_run/proof_of_experiments.hpp"
#include "sim/programs/sim_run/run_summary.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kProgressDescriptor = 3;  // where the launcher gives rank 0 the terminal; its stderr is a pipe

struct Arguments : RunOptions {
  std::vector<std::string> overrides;
  std::optional<std::int64_t> max_steps;
  std::string trace;
  std::string experiment;
  std::string project_dir, resume;
  bool prints_json = false;
  std::optional<std::int64_t> save_every;
  std::string worker_dir;                     // set in processes that this program starts: the folder for their results
  std::int64_t num_existing_checkpoints = 0;  // checkpoints in project_dir below this number existed before the run

  [[nodiscard]] TrainOptions train_options() const {
    return {.trace = !trace.empty(),
            .project_dir = project_dir,
            .save_every = save_every,
            .resume = resume,
            .num_existing_checkpoints = num_existing_checkpoints};
  }
};

// --max-steps is an override like any other, so that it is checked and passed to workers in the same way.
std::vector<std::string> with_overrides(const Arguments& arguments) {
  auto overrides = arguments.overrides;
  if (arguments.max_steps) overrides.push_back(fmt::format("max_steps={}", *arguments.max_steps));
  return overrides;
}

bool shows_progress(const Arguments& arguments) {
  if (arguments.quiet || arguments.progress == "off") return false;
  return arguments.progress == "on" || isatty(STDERR_FILENO) != 0;
}

// The prediction for one number of ranks of a sweep.
struct Point {
  Prediction prediction;
  double samples_per_step = 0;
};

sim::RunReport page_of(const Arguments& arguments, const Rehearsal& rehearsal, const sim::SimulationReport& report,
                       const std::vector<RankResult>& results, const std::vector<Point>& points) {
  auto page = rehearsal.page(report);
  page.title = fmt::format("{} on {} simulated ranks", fs::path(arguments.experiment).stem().string(), results.size());
  page.facts.emplace_back("experiment", arguments.experiment);
  for (const auto& text : with_overrides(arguments)) page.facts.emplace_back("set", text);
  page.losses = results.front().losses;
  const auto memory = largest_memory(results);
  const bool was_measured = std::any_of(memory.begin(), memory.end(),
                                        [](const auto& kind) { return kind.second > 0; });  // else it ended too early
  if (was_measured) page.memory = memory;
  if (points.size() < 2) return page;
  for (const auto& [prediction, samples] : points) {
    if (prediction.is_known()) page.scaling.push_back(scale_point(prediction, samples));
  }
  return page;
}

// A person reads standard output on a terminal, another program everywhere else.
bool prints_for_programs(const Arguments& arguments) { return arguments.prints_json || isatty(STDOUT_FILENO) == 0; }

void finish(const Arguments& arguments, const std::vector<RankResult>& results, std::int64_t peak_rss_bytes) {
  if (!arguments.trace.empty()) {
    std::vector<std::string> lines;
    for (const auto& result : results) lines.insert(lines.end(), result.trace.begin(), result.trace.end());
    write_lines(arguments.trace, lines);
  }
  if (!results.front().sample.empty()) std::cout << results.front().sample << '\n';
  auto summary = summarize(results);
  summary.experiment = arguments.experiment;
  summary.backend = arguments.backend;
  summary.peak_rss_bytes = peak_rss_bytes;
  if (!arguments.rehearsal.report.empty())
    summary.report = (fs::path(arguments.rehearsal.report) / "index.html").string();
  std::cout << (prints_for_programs(arguments) ? summary_line(summary) + "\n" : summary_text(summary)) << std::flush;
}

// Runs one number of ranks. The page is rewritten after every run of a sweep, so that it shows the runs so far even if
// a later one fails.
int run_simulated(const Arguments& arguments, int num_ranks, const Experiment& experiment, const Task& task,
                  std::vector<Point>& points) {
  limit_retained_memory(num_ranks);
  const Rehearsal rehearsal(arguments.rehearsal, num_ranks);
  std::vector<RankResult> results(num_ranks);
  std::vector<std::uint8_t> are_complete(num_ranks);  // not of ranks that an elastic training has lost
  const bool has_page = !arguments.rehearsal.report.empty();
  const auto report = run_threads_or_exit(rehearsal, "sim-run", collective_timeout(), [&](RankContext& rank) {
    auto options = arguments.train_options();
    options.keeps_losses = has_page && rank.rank_in_job == 0;
    options.progress_descriptor = shows_progress(arguments) ? STDERR_FILENO : -1;
    record_rank(rank, arguments.record);
    train_experiment(rank, experiment, task, options, results[rank.rank_in_job]);
    are_complete[rank.rank_in_job] = 1;
  });
  rehearsal.write(report);
  const auto updates = report.times.empty() ? 0 : report.times.front().updates.size();
  points.push_back(
      {.prediction = predict(report.times),
       .samples_per_step = updates > 0 ? num_ranks * results.front().samples / static_cast<double>(updates) : 0});
  if (const auto& point = points.back(); !arguments.points.empty() && point.prediction.is_known())
    add_sweep_point(arguments.points, scale_point(point.prediction, point.samples_per_step));
  if (has_page) write_page(page_of(arguments, rehearsal, report, results, points), arguments.rehearsal.report);
  // Files are written before the error is reported, because they explain it.
  const int code = conclude(report, "sim-run");
  if (code != kSuccess) return code;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (arguments.rehearsal.is_virtual()) std::cout << describe({points.back().prediction});
  std::erase_if(results, [&](const RankResult& result) { return are_complete[&result - results.data()] == 0; });
  finish(arguments, results, usage.ru_maxrss * 1024);
  return kSuccess;
}

int run_simulated(const Arguments& arguments, const Task& task) {
  std::vector<Point> points;
  for (const int num_ranks : arguments.rank_counts) {
    const auto experiment = read_experiment(arguments.experiment, with_overrides(arguments), num_ranks);
    if (const int code = run_simulated(arguments, num_ranks, experiment, task, points); code != kSuccess) return code;
  }
  return kSuccess;
}

// --- real backends: this program executes itself once per rank; each rank writes its result to a file ----------------

// Ranks report through files and not through pipes: a result with traces can exceed a pipe's buffer.
fs::path result_file(const std::string& folder, int rank) {
  return fs::path(folder) / fmt::format("rank{}.json", rank);
}

Json to_json(const sharded::MemoryAccount& memory) {
  Json kinds = Json::array();
  for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind)
    kinds.push_back(memory.most(static_cast<sharded::MemoryKind>(kind)));
  return kinds;
}

sharded::MemoryAccount memory_of(const Json& kinds) {
  sharded::MemoryAccount memory;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    memory.set(static_cast<sharded::MemoryKind>(kind), kinds[kind]);
  return memory;
}

// The barrier comes before the result is written: a rank that leaves early would close connections that others still
// use, and the launcher reads results only if all ranks succeed.
void run_rank(RankContext& context, const Arguments& arguments, const Experiment& experiment, const Task& task) {
  const RankScope scope(context);
  auto options = arguments.train_options();
  options.progress_descriptor = shows_progress(arguments) ? kProgressDescriptor : -1;
  RankResult result;
  train_experiment(context, experiment, task, options, result);
  const bool is_elastic = experiment.elastic && experiment.elastic->min_ranks;  // the others may have left already
  if (!is_elastic) context.world.barrier();
  write_lines(result_file(arguments.worker_dir, context.rank).string(), {Json{{"steps", result.steps},
                                                                              {"samples", result.samples},
                                                                              {"seconds", result.seconds},
                                                                              {"loss", result.loss},
                                                                              {"eval_correct", result.eval_correct},
                                                                              {"eval_samples", result.eval_samples},
                                                                              {"trace", result.trace},
                                                                              {"sample", result.sample},
                                                                              {"memory", to_json(result.memory)},
                                                                              {"is_sharded", result.is_sharded}}
                                                                             .dump()});
}

int run_worker(const Arguments& arguments, const Experiment& experiment, const Task& task) {
  auto context = make_real_rank(arguments.backend);
  record_rank(*context, arguments.record);
  try {
    run_rank(*context, arguments, experiment, task);
    if (context->leave) context->leave();
  } catch (...) {
    keep_until_exit(std::move(context));
    throw;
  }
  return kSuccess;
}

// JSON has no NaN: a diverged loss was written as null.
RankResult read_result(const std::string& folder, int rank) {
  std::ifstream in(result_file(folder, rank));
  const auto json = Json::parse(in);
  const auto real = [&](const char* key) { return json[key].is_null() ? std::nan("") : json[key].get<double>(); };
  return {.steps = json["steps"],
          .samples = json["samples"],
          .seconds = real("seconds"),
          .loss = real("loss"),
          .eval_correct = json["eval_correct"],
          .eval_samples = json["eval_samples"],
          .trace = json["trace"],
          .losses = {},
          .sample = json["sample"],
          .memory = memory_of(json["memory"]),
          .is_sharded = json["is_sharded"]};
}

// Passes on only the options that a worker needs; this process writes the trace, the summary and the sample itself, so
// that real and simulated runs have the same output.
int run_processes(const Arguments& arguments) {
  const TemporaryFolder folder;
  launcher::LocalLaunchOptions options{.num_processes = arguments.ranks()};
  options.command = {fs::read_symlink("/proc/self/exe").string(), "--backend",    arguments.backend, "--ranks",
                     std::to_string(arguments.ranks()),           "--worker-dir", folder.path()};
  for (const auto& text : with_overrides(arguments)) options.command.insert(options.command.end(), {"--set", text});
  if (!arguments.trace.empty()) options.command.insert(options.command.end(), {"--trace", arguments.trace});
  if (arguments.save_every)
    options.command.insert(options.command.end(), {"--project-dir", arguments.project_dir, "--save-every",
                                                   std::to_string(*arguments.save_every)});
  if (!arguments.resume.empty()) options.command.insert(options.command.end(), {"--resume", arguments.resume});
  if (!arguments.record.folder.empty())
    options.command.insert(options.command.end(), {"--record", arguments.record.folder});
  if (arguments.record.tensors) options.command.emplace_back("--record-tensors");
  options.command.insert(options.command.end(),
                         {"--progress", shows_progress(arguments) ? "on" : "off", arguments.experiment});
  options.progress_fd = shows_progress(arguments) ? STDERR_FILENO : -1;
  options.master_port = environment_int({"MASTER_PORT"}).value_or(0);
  const auto launched = launcher::launch_local(options);
  if (launched.exit_code != 0) {
    launcher::print_last_line("sim-run: " + launched.message);
    return launched.exit_code == kUsage ? kUsage : kFailure;
  }
  std::vector<RankResult> results;
  for (int rank = 0; rank < arguments.ranks(); ++rank) {
    if (fs::exists(result_file(folder.path(), rank))) results.push_back(read_result(folder.path(), rank));
  }
  finish(arguments, results, launched.peak_rss_bytes);
  return kSuccess;
}

std::vector<std::string> problems_of_checkpoints(const Arguments& arguments) {
  std::vector<std::string> problems;
  if (arguments.save_every.has_value() != !arguments.project_dir.empty())
    problems.emplace_back("--project-dir and --save-every: only one was given; give both or none");
  if (arguments.save_every && *arguments.save_every < 1)
    problems.push_back(fmt::format("--save-every: expected 1 or more, got {}", *arguments.save_every));
  if (!arguments.resume.empty() && !fs::is_directory(arguments.resume))
    problems.push_back(
        fmt::format("--resume: {}: no such folder; expected a checkpoint, or the --project-dir of an earlier run",
                    arguments.resume));
  // A new run into a folder with checkpoints would mix two trainings, and --resume would later pick the wrong one.
  // Workers skip the check: by the time they start, rank 0 may have saved.
  PosixFiles files;
  const bool starts_new_run =
      arguments.resume.empty() && arguments.worker_dir.empty() && !arguments.project_dir.empty();
  if (starts_new_run && !project_checkpoints(files, arguments.project_dir).empty()) {
    problems.push_back(
        fmt::format("--project-dir: {}/checkpoints holds checkpoints of another training; continue it with --resume, "
                    "or choose another folder",
                    arguments.project_dir));
  }
  return problems;
}

// Returns the newest checkpoint if `folder` is a project folder, else `folder` itself.
std::string checkpoint_to_resume(const std::string& folder) {
  PosixFiles files;
  const auto numbers = project_checkpoints(files, folder);
  return numbers.empty() ? folder : fmt::format("{}/checkpoints/checkpoint_{}", folder, numbers.back());
}

// Returns the number after the last existing checkpoint. A restarted rank resumes only from checkpoints of its own run.
std::int64_t num_existing_checkpoints(const std::string& project_dir) {
  PosixFiles files;
  const auto numbers = project_checkpoints(files, project_dir);
  return numbers.empty() ? 0 : numbers.back() + 1;
}

// All checks come before the data is loaded. Workers repeat them on the same options; they are cheap.
int run_experiment(Arguments arguments) {
  auto problems = problems_of(arguments);
  if (arguments.processes)
    problems.emplace_back("--processes: an experiment keeps nothing in globals and runs on threads; give `-- PROGRAM`");
  if (auto problem = problem_of_map_cuda(arguments.rehearsal); !problem.empty()) problems.push_back(std::move(problem));
  if (auto problem = problem_of_output(arguments.trace); !problem.empty()) problems.push_back("--trace: " + problem);
  if (auto problem =
          problem_of_sweep(arguments, {{"--trace", arguments.trace}, {"--project-dir", arguments.project_dir}});
      !problem.empty())
    problems.push_back(std::move(problem));
  for (auto& problem : problems_of_checkpoints(arguments)) problems.push_back(std::move(problem));
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  if (!arguments.resume.empty()) arguments.resume = checkpoint_to_resume(arguments.resume);
  if (!arguments.project_dir.empty())
    arguments.num_existing_checkpoints = num_existing_checkpoints(arguments.project_dir);
  if (arguments.backend == "sim") {
    check_rank_counts(arguments,
                      [&](int ranks) { read_experiment(arguments.experiment, with_overrides(arguments), ranks); });
  }
  const auto experiment = read_experiment(arguments.experiment, with_overrides(arguments), arguments.ranks());
  const auto task = load_task(experiment);
  if (arguments.backend == "sim") return run_simulated(arguments, task);
  if (!arguments.worker_dir.empty()) return run_worker(arguments, experiment, task);
  return run_processes(arguments);
}

// --worker-dir is in an empty group, which hides it from the help: only this program passes it.
std::optional<int> parse(int argc, char** argv, Arguments& arguments, CLI::App& app) {
  add_run_options(app, arguments);
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_option("--max-steps", arguments.max_steps, "Stop training after this many micro-batches");
  app.add_option("--trace", arguments.trace, "Write the steps of all ranks to this file, as JSON lines");
  app.add_option("--project-dir", arguments.project_dir,
                 "Folder for the checkpoints of this training: DIR/checkpoints/checkpoint_0 ...");
  app.add_option("--save-every", arguments.save_every, "Save a checkpoint after every N micro-batches");
  app.add_option("--resume", arguments.resume,
                 "Resume from a checkpoint folder, or from the newest checkpoint of a project folder");
  app.add_flag("--json", arguments.prints_json, "On a terminal, end with the JSON line instead of a readable summary");
  app.add_option("--worker-dir", arguments.worker_dir)->group("");
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program")
      ->required();
  return parse_command_line(app, argc, argv);
}

const ExperimentFiles kExperimentFiles{.check = [](const auto& file, const auto& overrides,
                                                   int num_ranks) { read_experiment(file, overrides, num_ranks); },
                                       .make_target = make_experiment_target,
                                       .overrides_of_proof = overrides_of_proof,
                                       .compare_with = compare_with};

int run_main(int argc, char** argv) {
  Arguments arguments;
  try {
    if (argc > 1 && std::string(argv[1]) == "plan") return plan_main(argc - 1, argv + 1);
    if (argc > 1 && std::string(argv[1]) == "layouts") {
      const auto dashes = std::find(argv + 2, argv + argc, std::string_view("--"));
      const bool is_described = std::any_of(argv + 2, dashes, describes_runs);
      return is_described ? layout_search_main(argc - 1, argv + 1) : layouts_main(argc - 1, argv + 1);
    }
    if (const auto code = run_program_command(argc, argv, kExperimentFiles)) return *code;
    check_program_follows_dashes("sim-run", {argv + 1, argv + argc});
    CLI::App app("Trains an experiment on simulated ranks (threads of this process) or on real ones.", "sim-run");
    app.footer(
        "Other commands, each with --help: sim-run check, sim-run plan, sim-run explore, sim-run compare, sim-run "
        "prove, sim-run layouts, sim-run pipeline, sim-run predict");
    if (const auto code = parse(argc, argv, arguments, app)) return *code;
    return run_experiment(arguments);
  } catch (const std::exception& error) {
    std::cerr << "sim-run: " << message_of(error) << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have had it ignored, and children could not be waited for
  accel::end_process(accel::programs::run_main(argc, argv));
}
