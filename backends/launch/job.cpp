// The loop of a launcher: it waits for output, signals and messages of other machines in one poll(), and moves a job
// from attempt to attempt. It uses one thread, so there are no locks. Each round does a bounded amount of work, and
// output is written by other threads (OutputWriter), so that signals and messages never wait for a rank or a reader.
#include "backends/launch/job.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "backends/launch/cpu_plan.hpp"
#include "backends/launch/output_writer.hpp"
#include "backends/launch/ports.hpp"
#include "backends/launch/process.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/files/temporary_folder.hpp"
#include "reference/recorder/ending.hpp"

namespace accel::launcher {
namespace {

// Blocks the signals that a launcher passes on to its children, and returns them one by one.
//
//     SignalGate signals;                       // from now on signals are queued
//     poll({signals.descriptor(), POLLIN});     // readable when a signal is pending, or a child has ended
//     while (const auto signal = signals.next()) processes.signal(signal->number);
//
// Thread rule: the thread that created it. The signal masks of other threads do not change.

struct CaughtSignal {
  int number = 0;
  bool is_from_terminal = false;  // sent by the terminal, so every process of the foreground group has received it
};

class SignalGate {
 public:
  SignalGate();
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // The signal mask before construction, with which children must start: a blocked mask would survive exec.
  [[nodiscard]] const sigset_t& mask_before() const { return before_; }
  // Returns the next pending TERM, INT, HUP, QUIT, USR1 or USR2. Signals that are still pending on destruction then
  // take their normal effect.
  std::optional<CaughtSignal> next();

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

// Signals must be blocked for signalfd to receive them. SIGCHLD is included only to wake poll() when a child ends.
SignalGate::SignalGate() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&signals, signal);
  descriptor_ = checked_descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), "the signals of the launcher");
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalGate::~SignalGate() {
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<CaughtSignal> SignalGate::next() {
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) return CaughtSignal{static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }
  return std::nullopt;
}

// Whether the signal requests the end of the job. USR2 only passes through to the ranks; USR1 also prints where they
// are.
bool requests_termination(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

// The time between the first failure and SIGTERM for the other ranks. Ranks that end on their own in this time are
// reported as such, not as stopped. On several machines it is longer: each machine notices a network failure
// separately, and its ranks may report it in their last lines.
constexpr auto kSettleTime = std::chrono::milliseconds(500), kSettleTimeOfMachines = std::chrono::milliseconds(1000);
constexpr auto kGraceOfSignal = std::chrono::seconds(30);  // time to save a checkpoint after a signal, as in torchrun
// How long a job that ends waits for the reader of its output; the rest is then discarded. A job that has succeeded
// waits until a signal, since its reader may be a pager.
constexpr auto kLogInterval = std::chrono::milliseconds(10);  // the record keeps the last calls only
constexpr FlushLimits kFlushAfterSignal{.idle = std::chrono::seconds(1), .total = std::chrono::seconds(3)};
constexpr FlushLimits kFlushAfterFailure{.idle = std::chrono::seconds(5), .total = std::chrono::seconds(30)};
constexpr FlushLimits kFlushBetweenEvents{.idle = std::chrono::milliseconds(10),
                                          .total = std::chrono::milliseconds(50)};

bool is_recording_off(const JobOptions& options) {
  if (const auto given = options.environment.find(recorder::kRecordVariable); given != options.environment.end())
    return given->second == recorder::kNoRecord;
  return environment(recorder::kRecordVariable) == recorder::kNoRecord;
}

// The file of the members of elastic trainings, for ranks that are started anew: see elastic/members_file.hpp.
class MembersFile {
 public:
  [[nodiscard]] std::string path() const { return folder_.path() + "/members"; }
  [[nodiscard]] bool exists() const { return std::filesystem::exists(path()); }
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove(path(), ignored);
  }

 private:
  TemporaryFolder folder_;
};

// Beyond the pipes and logs of the ranks and the connections of the machines, which are counted.
constexpr std::size_t kOtherOpenFiles = 24;

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options), num_local_(processes_per_machine(options.machines)), machines_(options.machines) {
    const auto& machines = options.machines;
    const bool accepts_machines = machines.machine_rank == 0 && machines.num_machines > 1;
    require_open_files(kOtherOpenFiles + (options.forwards_output ? 2 * num_local_ : 0) +
                           (options.log_dir.empty() ? 0 : 2 * num_local_) +
                           (accepts_machines ? 2 * machines.num_machines : 0),
                       fmt::format("a launcher of {} processes", num_local_));
    if (!options.has_rank_variables || machines.num_processes == 1 || is_recording_off(options)) return;
    try {
      auto record = recorder::JobRecord::create({.world_size = machines.num_processes,
                                                 .first_rank = machines.machine_rank * num_local_,
                                                 .num_local = num_local_});
      record->is_watched() = record->has_all_ranks();  // else the ranks watch themselves: see RankWatch
      if (options.logs_calls) log_.emplace(record);
      watch_.emplace(options.watch, std::move(record));
      if (options.machines.max_restarts > 0) members_.emplace();
    } catch (const ConfigError& error) {
      output_.standard_error().write(fmt::format("accel launch: warning: hangs are not explained: {}\n", error.what()));
    }
  }

  // Runs attempts until the machines agree on a outcome without a restart. Every attempt starts with a new join, also
  // on one machine, where join() begins the attempt at once.
  JobResult run() {
    while (true) {
      machines_.join();
      while (!machines_.attempt() && !machines_.outcome()) wait_for_events(nullptr);
      if (machines_.attempt() && !machines_.outcome()) run_attempt(*machines_.attempt());
      const auto& outcome = *machines_.outcome();
      result_.failure = outcome.failure;
      if (!outcome.restarts || interrupted_) return result_;
      ++result_.restarts;
      if (options_.prints_restarts)
        output_.standard_error().write(fmt::format("accel launch: {}; restarting ({} of at most {})\n",
                                                   outcome.failure.message, result_.restarts,
                                                   machines_.attempt()->max_restarts));
    }
  }

  /// Waits for the reader of the output, after the other machines have learned the outcome.
  void finish_output() {
    while (!interrupted_ && result_.failure.exit_code == 0 && !output_.flush(kFlushBetweenEvents))
      wait_for_events(nullptr, std::chrono::milliseconds(10));
    output_.flush(interrupted_ ? kFlushAfterSignal : kFlushAfterFailure);
  }

  /// The signal that requested the end, if any.
  [[nodiscard]] std::optional<int> interrupted() const { return interrupted_; }

 private:
  // Ends only when both are true: all local processes have ended, and all machines agree on the outcome. A failure or a
  // certain hang here, or an outcome of failure elsewhere, stops the local ranks.
  void run_attempt(const Attempt& attempt) {
    if (watch_) watch_->begin_attempt();
    if (log_) log_->clear();
    result_.diagnosis = {};
    result_.is_suspected = false;
    lost_.clear();
    times_started_anew_.clear();
    if (members_) members_->remove();
    const auto started = start(attempt);
    auto& processes = *started;
    bool reported = false;
    std::optional<std::chrono::steady_clock::time_point> failed_at;
    std::optional<RankFailure> failure;
    const auto explain_once = [&] {
      if (!failure && failure_of_job(processes)) failure = interrupted_ ? processes.failure() : explained(processes);
    };
    while (!processes.have_ended() || !machines_.outcome()) {
      wait_for_events(&processes);
      if (log_) log_->collect();
      if (!failed_at && !interrupted_) failure = failure_seen_by_watch(processes);
      if (is_elastic()) machines_.set_elastic();
      if (is_elastic() && !interrupted_ && !failed_at && !machines_.outcome()) note_losses(attempt, processes);
      const bool is_over =
          failure || failure_of_job(processes) || (machines_.outcome() && machines_.outcome()->failure.exit_code != 0);
      if (is_over && !failed_at) failed_at = std::chrono::steady_clock::now();
      const auto patience = options_.machines.num_machines > 1 ? kSettleTimeOfMachines : kSettleTime;
      if (is_over && !interrupted_ && std::chrono::steady_clock::now() - *failed_at >= patience) {
        explain_once();
        processes.stop();
      }
      if (!reported && processes.have_ended()) {
        reported = true;
        explain_once();
        const bool is_of_training =
            failure && failure->rank >= 0 && is_elastic() && watch_->record().rank(failure->rank).may_be_lost;
        if (is_of_training)
          machines_.report_lost(*failure);
        else if (failure)
          machines_.report_failure(*failure);  // only now is the message complete: all output has been read
        else
          machines_.report_done();
      }
    }
    if (log_) {
      result_.calls = log_->calls();
      result_.num_missed_calls = log_->num_missed();
    }
    // A failure that another machine has reported first may have been diagnosed here too.
    if (watch_) result_.diagnosis = recorder::ending_of(watch_->record()).value_or(result_.diagnosis);
    result_.peak_rss_bytes = std::max(result_.peak_rss_bytes, processes.peak_rss_bytes());
  }

  // The ranks go on without those that have ended.
  [[nodiscard]] bool is_elastic() const { return watch_ && watch_->record().is_elastic(); }
  // The first failure that ends the job: not of a rank that an elastic training has lost, unless all have failed.
  [[nodiscard]] std::optional<RankFailure> failure_of_job(const RankProcesses& processes) const {
    if (!is_elastic()) return processes.failure();
    for (const int rank : watch_->record().local_ranks()) {
      const auto failure = processes.failure_of(rank);
      if (failure && !watch_->record().rank(rank).may_be_lost) return failure;
    }
    return processes.have_ended() && !processes.has_success() ? processes.failure() : std::nullopt;
  }

  // Starts lost ranks anew, which join the others, as long as there are restarts left.
  void note_losses(const Attempt& attempt, RankProcesses& processes) {
    const auto ends = processes.ends();
    const bool is_any_left = std::any_of(ends.begin(), ends.end(), [](const auto& end) { return !end.has_ended; });
    const bool may_join = members_ && members_->exists() && (is_any_left || options_.machines.num_machines > 1);
    for (int local = 0; local < num_local_; ++local) {
      const int rank = rank_of(local);
      const bool is_lost = !ends[local].detail.empty() && watch_->record().rank(rank).may_be_lost;
      if (!is_lost || lost_.contains(rank)) continue;
      int started = 0;
      for (const auto& [other, times] : times_started_anew_) started += times;
      const bool starts_anew = may_join && started < attempt.max_restarts;
      if (!starts_anew && processes.have_ended()) return;
      output_.standard_error().write(fmt::format(
          "accel launch: warning: rank {} is lost: {}{}\n", rank, ends[local].detail,
          starts_anew ? fmt::format("; starting it anew ({} of at most {})", started + 1, attempt.max_restarts) : ""));
      if (!starts_anew) {
        lost_.insert(rank);
        continue;
      }
      ++times_started_anew_[rank];
      processes.start_anew(process_of(attempt, local));
    }
  }

  // A certain hang, as the failure of the job. Prints a suspected one.
  std::optional<RankFailure> failure_seen_by_watch(const RankProcesses& processes) {
    if (!watch_ || processes.have_ended()) return std::nullopt;
    const auto hang = watch_->look([&] { return processes.ends(); });
    if (!hang) return std::nullopt;
    result_.is_suspected = hang->is_suspected;
    if (hang->ends_job) return diagnosed(hang->diagnosis);
    output_.standard_error().write(fmt::format("accel launch: warning: {}\n", hang->diagnosis.text));
    return std::nullopt;
  }

  // Why the processes have failed: what the record of their calls shows, else the first that failed.
  std::optional<RankFailure> explained(const RankProcesses& processes) {
    auto failure = processes.failure();
    if (!failure || !watch_) return failure;
    const auto explanation = watch_->explain(processes.ends(), failure->rank);
    if (explanation.diagnosis) return diagnosed(*explanation.diagnosis);
    if (const auto own = processes.failure_of(explanation.culprit.value_or(failure->rank))) failure = own;
    if (const auto unprinted = watch_->message_of(failure->rank); !unprinted.empty())
      failure->message += ": " + unprinted;
    if (!explanation.culprit) return failure;
    if (!explanation.released.empty())
      failure->message +=
          fmt::format("\n{}: released from waiting by this failure", describe_ranks(explanation.released));
    result_.diagnosis = {.kind = Diagnosis::Kind::kRankFailure, .ranks = {failure->rank}, .text = failure->message};
    return failure;
  }

  RankFailure diagnosed(const Diagnosis& diagnosis) {
    result_.diagnosis = diagnosis;
    return {-1, recorder::kExitCodeOfDiagnosis, diagnosis.text};
  }

  // A program that cannot be started here cannot succeed after a restart, so the failure is final for all machines.
  std::unique_ptr<RankProcesses> start(const Attempt& attempt) {
    try {
      return std::make_unique<RankProcesses>(processes_of(attempt));
    } catch (const ConfigError& error) {
      machines_.report_failure({-1, 2, fmt::format("machine {}: {}", options_.machines.machine_rank, error.what())},
                               /*is_final=*/true);
      throw;
    }
  }

  // The ranks of a machine are consecutive, as under torchrun: machine m has ranks m * n to m * n + n - 1.
  RankProcessesOptions processes_of(const Attempt& attempt) {
    RankProcessesOptions processes{.command = options_.command,
                                   .default_environment = options_.default_environment,
                                   .prefix = options_.prefix,
                                   .forwards_output = options_.forwards_output,
                                   .output = &output_,
                                   .progress_fd = options_.progress_fd,
                                   .record_fd = watch_ ? watch_->record().descriptor() : -1,
                                   .blocked = &signals_.mask_before()};
    if (options_.pins_cpus) cpus_ = plan_cpus(cores_of(cpus_of_this_process()), num_local_);
    for (int local = 0; local < num_local_; ++local) processes.ranks.push_back(process_of(attempt, local));
    return processes;
  }

  [[nodiscard]] int rank_of(int local) const { return options_.machines.machine_rank * num_local_ + local; }

  [[nodiscard]] RankProcess process_of(const Attempt& attempt, int local) const {
    RankProcess process{.rank = rank_of(local), .environment = options_.environment};
    if (options_.pins_cpus) {
      process.cpus = cpus_[local];
      process.environment[kIsPinned] = "1";
    }
    if (options_.has_rank_variables) process.environment.merge(rank_variables(options_.machines, attempt, local));
    const auto anew = times_started_anew_.find(process.rank);
    const int restarts = anew == times_started_anew_.end() ? 0 : anew->second;
    if (members_) process.environment["ACCEL_ELASTIC_MEMBERS"] = members_->path();
    if (restarts > 0) process.environment["ACCEL_ELASTIC_RESTARTS"] = std::to_string(restarts);
    if (!options_.log_dir.empty())
      process.log_dir = fmt::format("{}/attempt_{}/rank_{}{}", options_.log_dir, attempt.number, process.rank,
                                    restarts > 0 ? fmt::format(".{}", restarts) : "");
    // Bits 1 and 2, as in torchrun's --redirects and --tee.
    const int logged = options_.logged.empty() ? 3 : options_.logged.at(local);
    process.logs_output = (logged & 1) != 0;
    process.logs_error = (logged & 2) != 0;
    return process;
  }

  // Waits for the next event, at most one monitor interval. Some events have no descriptor (deadlines, grace periods,
  // missed "alive" messages), so the interval also bounds how late they are noticed.
  void wait_for_events(RankProcesses* processes) {
    wait_for_events(processes, log_ ? std::min<std::chrono::milliseconds>(options_.monitor_interval, kLogInterval)
                                    : options_.monitor_interval);
  }
  void wait_for_events(RankProcesses* processes, std::chrono::milliseconds limit) {
    std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
    if (processes != nullptr) processes->add_to(waiting);
    machines_.add_to(waiting);
    output_.add_to(waiting);
    poll(waiting.data(), waiting.size(), static_cast<int>(limit.count()));
    while (const auto signal = signals_.next()) forward_signal(*signal, processes);
    if (processes != nullptr) processes->advance();
    machines_.advance();
  }

  // Passes the signal on only to ranks that handle it, for example to save a checkpoint: it would end the others.
  void print_whereabouts(const RankProcesses& processes) {
    output_.standard_error().write(watch_->whereabouts(processes.ends()) + "\n");
    processes.signal_handlers(SIGUSR1);
  }

  void forward_signal(const CaughtSignal& caught, RankProcesses* processes) {
    const int signal = caught.number;
    if (signal == SIGUSR1 && watch_ && processes != nullptr) return print_whereabouts(*processes);
    if (processes != nullptr && interrupted_ && requests_termination(signal))
      processes->signal(SIGKILL);  // the second request ends the grace period
    // Ctrl-C already reaches children in the terminal's foreground group; sending it again would count as the second.
    else if (processes != nullptr && !(caught.is_from_terminal && processes->are_in_this_group()))
      processes->signal(signal);
    if (!requests_termination(signal) || interrupted_) return;
    interrupted_ = signal;
    if (processes != nullptr) processes->end_after(kGraceOfSignal);
    const auto text = fmt::format("machine {} was interrupted: its launcher {}", options_.machines.machine_rank,
                                  describe_exit_code(128 + signal));
    machines_.report_failure({-1, 128 + signal, text}, /*is_final=*/true);
  }

  const JobOptions& options_;
  const int num_local_;
  SignalGate signals_;
  LaunchOutput output_;  // after signals_: its threads must not receive the signals that the gate blocks
  Machines machines_;
  std::optional<recorder::JobWatch> watch_;  // absent for one rank
  std::optional<recorder::CallLog> log_;
  std::optional<MembersFile> members_;     // absent if no rank can be started anew
  std::vector<std::vector<int>> cpus_;     // by process of this machine; empty: they are not pinned
  std::set<int> lost_;                     // ranks of this attempt, which has continued without them
  std::map<int, int> times_started_anew_;  // in this attempt, by rank
  std::optional<int> interrupted_;
  JobResult result_;
};

}  // namespace

// The names of torch/distributed/elastic/agent/server/local_elastic_agent.py, so programs for torchrun work unchanged.
std::map<std::string, std::string> rank_variables(const MachinesOptions& machines, const Attempt& attempt,
                                                  int local_rank) {
  const int num_local = machines.num_processes / machines.num_machines;
  return {{"RANK", std::to_string(machines.machine_rank * num_local + local_rank)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"WORLD_SIZE", std::to_string(machines.num_processes)},
          {"LOCAL_WORLD_SIZE", std::to_string(num_local)},
          {"GROUP_RANK", std::to_string(machines.machine_rank)},
          {"MASTER_ADDR", machines.main_address},
          {"MASTER_PORT", std::to_string(attempt.store_port)},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt.number)},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(attempt.max_restarts)}};
}

int processes_per_machine(const MachinesOptions& machines) {
  check_config(machines.num_processes >= 1 && machines.num_processes <= kMaxProcesses,
               "launch: {} processes; expected 1 to {}", machines.num_processes, kMaxProcesses);
  check_config(machines.num_machines >= 1 && machines.num_processes % machines.num_machines == 0,
               "launch: {} processes cannot be divided evenly among {} machines; expected a multiple of the number of "
               "machines",
               machines.num_processes, machines.num_machines);
  check_config(machines.machine_rank >= 0 && machines.machine_rank < machines.num_machines,
               "launch: machine_rank {}; expected 0 to {}", machines.machine_rank, machines.num_machines - 1);
  return machines.num_processes / machines.num_machines;
}

JobResult run_job(const JobOptions& options) {
  check_config(!options.command.empty(), "launch: no program given; expected the command that each rank runs");
  JobResult result;
  std::optional<int> interrupted;
  {
    Job job(options);
    result = job.run();
    job.finish_output();
    interrupted = job.interrupted();
  }
  // After ~Job has unblocked the signal: this process then dies by it, and the shell sees the correct status.
  if (interrupted) raise(*interrupted);
  return result;
}

}  // namespace accel::launcher
