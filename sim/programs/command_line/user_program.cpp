// `sim-run [options] -- PROGRAM`: starts a user program, once for all simulated ranks or once per real rank. The
// program is any executable, possibly a script around one, so sim-run cannot know whether it calls accel::run until the
// program acknowledges it on an inherited pipe.
#include "sim/programs/command_line/user_program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "backends/launch/local_launch.hpp"
#include "backends/launch/output_writer.hpp"
#include "backends/launch/process.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/processes/process_run.hpp"
#include "sim/programs/processes/process_watch.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/processes/started_worlds.hpp"
#include "sim/programs/rehearsal/diagnosis_json.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {
namespace {

constexpr int kSimulatorsEndMs = 5000;  // to write the files of their runs

constexpr const char* kExperimentOnlyOptions[] = {"--set",        "--max-steps", "--trace", "--project-dir",
                                                  "--save-every", "--resume",    "--json"};

template <typename Names>
bool contains(const Names& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Explains an argument before `--` that the parser did not accept.
std::string problem_with(const CLI::App& app, const std::string& text) {
  const auto name = text.substr(0, text.find('='));
  if (contains(kExperimentOnlyOptions, name))
    return name + ": only experiments support this option; pass a program its own options after `-- PROGRAM`";
  const auto hint = option_hint(app, text);
  return text + (text.rfind('-', 0) == 0 ? ": unknown option" + (hint.empty() ? "" : "; " + hint)
                                         : ": unexpected before `--`; give an experiment file or `-- PROGRAM`");
}

RunOptions parse_options(const UserProgram& program) {
  RunOptions options;
  CLI::App app("Runs a user program.", "sim-run");
  // No help flag: with a program, --help before `--` is an unknown option; `sim-run --help` alone prints the help.
  app.set_help_flag();
  app.allow_extras();
  add_run_options(app, options);
  std::vector<std::string> problems;
  try {
    const auto given = normalize_option_names(app, program.options);
    app.parse(std::vector<std::string>(given.rbegin(), given.rend()));  // CLI11 parses a vector from its end
  } catch (const CLI::ParseError& error) {
    problems.emplace_back(error.what());
  }
  bool is_value = false;  // whether `text` is the value of an unknown option, which has been reported already
  for (const auto& text : app.remaining()) {
    const bool is_option = text.rfind("--", 0) == 0;
    if (is_option || !is_value) problems.push_back(problem_with(app, text));
    is_value = is_option && text.find('=') == std::string::npos;
  }
  const bool has_number = app.get_option("--ranks")->count() > 0;
  options.program_starts_ranks = options.backend == "sim" && !options.processes &&
                                 (has_number ? options.rank_counts == std::vector{0} : starts_ranks(program.command));
  if (options.program_starts_ranks) options.rank_counts = {1};
  if (program.command.empty()) problems.emplace_back("--: no program follows; expected `-- PROGRAM [ARGS...]`");
  for (auto& problem : problems_of(options)) problems.push_back(std::move(problem));
  if (auto problem = problem_of_sweep(options); !problem.empty()) problems.push_back(std::move(problem));
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return options;
}

// A pipe that the program's processes inherit; accel::run writes one byte per process that calls it. The read end is
// not inherited and does not block: `counts` is called after the program has ended, and then no byte may be there.
class Acknowledgements {
 public:
  Acknowledgements() {
    checked_descriptor(pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK), "the start of the program");
    fcntl(ends_[1], F_SETFD, 0);
  }
  ~Acknowledgements() {
    for (const int end : ends_) close(end);
  }
  Acknowledgements(const Acknowledgements&) = delete;
  Acknowledgements& operator=(const Acknowledgements&) = delete;

  [[nodiscard]] int descriptor() const { return ends_[1]; }
  /// Counts what has been acknowledged so far. Call it once.
  struct Counts {
    int calls = 0;  // of accel::run
    int ends = 0;   // of its simulated ranks
  };
  [[nodiscard]] Counts counts() const {
    Counts counts;
    for (char byte = 0; read(ends_[0], &byte, 1) == 1;) ++(byte == 'e' ? counts.ends : counts.calls);
    return counts;
  }

 private:
  std::array<int, 2> ends_{};
};

// Waits for the program's end and forwards the signals that would end this process. The signals are blocked and read by
// sigwaitinfo instead of a handler, so that none can arrive between the check for the child's end and the wait.
// Also waits for processes that this one has adopted.
int wait_for(pid_t pid) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &before);
  int status = 0;
  while (true) {
    const auto ended = waitpid(-1, &status, WNOHANG);
    if (ended == pid) break;
    if (ended > 0) continue;
    if (ended < 0 && errno != EINTR) throw Error(fmt::format("cannot wait for the program: {}", std::strerror(errno)));
    siginfo_t info{};
    const int signal = sigwaitinfo(&signals, &info);
    // A terminal sends Ctrl-C to the whole foreground process group, so the program has already received it. A second
    // SIGINT would cut its clean-up short.
    if (signal > 0 && signal != SIGCHLD && info.si_code != SI_KERNEL) kill(pid, signal);
    if (signal > 0 && signal != SIGCHLD)
      kill(pid, SIGCONT);  // a stopped process does not act on any signal but SIGKILL
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return launcher::exit_code_of_status(status);
}

// Runs the program as one process that shares sim-run's standard streams. Returns its exit code.
int run_simulated(const UserProgram& program, const std::string& request, const StartedWorlds& worlds) {
  auto variables = program.environment;
  variables[kSimRequestVariable] = request;
  worlds.serve(variables);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // of the simulators of the program's worlds, and of ranks that it leaves behind
  const int code =
      wait_for(launcher::start_process({.command = with_interpreter(program.command), .environment = variables}));
  if (worlds.count() > 0) end_adopted_processes(kSimulatorsEndMs);
  // A shell only stops a script on Ctrl-C if the interrupted command died of the signal, so sim-run ends by the same
  // signal.
  if (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP) raise(code - 128);
  if (code > kDiagnosed && worlds.count() == 0)
    std::cerr << "sim-run: '" << program.command.front() << "' " << launcher::describe_exit_code(code) << std::endl;
  return code;
}

int run_processes(const UserProgram& program, const std::string& request, int num_processes) {
  launcher::LocalLaunchOptions options{.command = program.command, .num_processes = num_processes};
  options.environment = program.environment;
  options.environment[kSimRequestVariable] = request;
  // The user's program owns the output; sim-run adds no prefix to it, as in a simulated run.
  options.prefix_output = false;
  options.master_port = environment_int({"MASTER_PORT"}).value_or(0);
  const auto launched = launcher::launch_local(options);
  if (!launched.message.empty()) launcher::print_last_line("sim-run: " + launched.message);
  // Only the simulator diagnoses hangs, so a 3 here is the program's own exit code and must not be mistaken for one.
  return launched.exit_code == kDiagnosed ? kFailure : launched.exit_code;
}

// The order matters: a diagnosis of an earlier run is removed before the start, so that an existing file afterwards is
// this run's. A process that crashes writes none, and sim-run then writes one for it.
int run_once(const UserProgram& program, const RunOptions& options, int ranks, const std::string& sweep) {
  const Acknowledgements acknowledgements;
  const SimRequest wanted{.ranks = ranks,
                          .backend = options.backend,
                          .rehearsal = options.rehearsal,
                          .sweep = sweep,
                          .record = options.record,
                          .acknowledge = acknowledgements.descriptor()};
  auto python = options.program_starts_ranks ? std::nullopt : python_program(program.command, options.preload);
  if (python) python->environment.insert(program.environment.begin(), program.environment.end());
  const auto problem = !python && options.processes ? problem_of_map_cuda(options.rehearsal) : "";
  check_config(problem.empty(), "{}", problem);
  const auto request = to_json(wanted);
  const StartedWorlds worlds(request);
  const auto& diagnosis = options.rehearsal.diagnosis;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(diagnosis))) std::filesystem::remove(diagnosis);
  const auto run = [&] {
    if (options.backend != "sim") {
      const bool records_python = python && !options.record.folder.empty();
      return run_processes(
          records_python ? UserProgram{.command = python->command, .environment = python->environment} : program,
          request, ranks);
    }
    if (!python && !options.processes) return run_simulated(program, request, worlds);
    auto processes = python ? *python
                            : RankProgram{.command = program.command,
                                          .environment = program.environment,
                                          .descriptors = {acknowledgements.descriptor()}};
    processes.environment[kSimRequestVariable] = request;
    worlds.serve(processes.environment);
    return run_process_ranks(std::move(processes), wanted);
  };
  const int code = run();
  if (code != kSuccess && !diagnosis.empty() && !std::filesystem::exists(diagnosis)) {
    const auto text = fmt::format("'{}' {}", program.command.front(), launcher::describe_exit_code(code));
    write_lines(diagnosis, {diagnosis_json({.error = std::make_exception_ptr(Error(text))})});
  }
  const auto counts = acknowledgements.counts();
  // The exit codes of programs that start their ranks, such as those of pytest, are their own.
  if (!python && counts.calls == 0 && worlds.count() > 0) return code;
  if (options.program_starts_ranks) {
    std::cerr << "sim-run: no process of '" << program.command.front()
              << "' has called init_process_group with the backend gloo, so nothing was simulated" << std::endl;
    return code;
  }
  if (!python && counts.calls == 0) {
    throw Error(fmt::format(
        "'{}' {} without calling accel::run, or init_process_group of Python with the backend gloo; expected "
        "a C++ program whose main is `return accel::run(argc, argv, train);`, or a command that starts "
        "ranks, such as pytest",
        program.command.front(), launcher::describe_exit_code(code)));
  }
  // Ranks that are threads end with their process, whichever of them has ended it.
  const bool are_threads = !python && !options.processes && options.backend == "sim";
  if (are_threads && code == kSuccess && counts.ends < counts.calls) {
    throw Error(
        fmt::format("'{}' ended with exit code 0 before its ranks had returned: one of them has ended the process that "
                    "they share; --processes gives each rank a process of its own, and names the one that leaves",
                    program.command.front()));
  }
  return code <= kDiagnosed ? code : kFailure;
}

}  // namespace

int run_attached(const std::vector<std::string>& arguments) {
  check_config(!arguments.empty() && arguments[0].find_first_not_of("0123456789") == std::string::npos,
               "attach: expected the descriptor of a shared area");
  const auto options =
      parse_options({.options = {arguments.begin() + 1, arguments.end()}, .command = {"descriptor " + arguments[0]}});
  const int descriptor = std::stoi(arguments[0]);
  if (arguments.size() == 1) {
    if (const auto request = read_sim_request()) return attach_to_ranks(descriptor, *request);
  }
  return attach_to_ranks(descriptor,
                         {.ranks = options.ranks(), .rehearsal = options.rehearsal, .record = options.record});
}

int run_user_program(const UserProgram& program) {
  const auto options = parse_options(program);
  if (options.rank_counts.size() == 1) return run_once(program, options, options.ranks(), options.points);
  // The points of a sweep travel from run to run in a file, because each run is a separate process of the user program.
  check_rank_counts(options);
  const TemporaryFolder folder;
  for (const int ranks : options.rank_counts) {
    if (const int code = run_once(program, options, ranks, folder.path() + "/sweep.jsonl"); code != kSuccess)
      return code;
  }
  return kSuccess;
}

}  // namespace accel::programs
