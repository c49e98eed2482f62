#include "backends/launch/rank_processes.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backends/launch/process.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::launcher {
namespace {

using Pipe = std::array<int, 2>;

// How long to wait for the end of a stream after its process has ended: see have_ended().
constexpr auto kPipeDrainTimeout = std::chrono::seconds(2);

// O_CLOEXEC, so that a rank does not inherit the pipes of other ranks; they would never see the end of their streams.
Pipe make_pipe() {
  Pipe ends{};
  checked_descriptor(pipe2(ends.data(), O_CLOEXEC), "a pipe for the output of a rank");
  return ends;
}

// Reads the sets of signals in /proc/PID/status, 64 bits in hexadecimal digits.
bool handles(pid_t pid, int signal) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::uint64_t handled = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigIgn:") || line.starts_with("SigCgt:")) handled |= std::stoull(line.substr(7), nullptr, 16);
  }
  return (handled >> (signal - 1) & 1) != 0;
}

// Creates the folder of the log. "" if the stream is not logged.
std::string log_file_of(const RankProcess& rank, const char* name, bool logs) {
  if (rank.log_dir.empty() || !logs) return "";
  std::error_code error;
  std::filesystem::create_directories(rank.log_dir, error);
  check_config(!error, "--log_dir: {}: {}", rank.log_dir, error.message());
  return rank.log_dir + "/" + name;
}

}  // namespace

// A single process stays in the launcher's process group, so that it can read from the terminal.
RankProcesses::RankProcesses(const RankProcessesOptions& options)
    : options_(options), own_groups_(options.ranks.size() > 1) {
  try {
    for (const auto& rank : options.ranks) processes_.push_back(started(rank));
  } catch (...) {
    signal(SIGKILL);
    reap(/*block=*/true);
    throw;
  }
}

RankProcesses::~RankProcesses() {
  signal(SIGKILL);
  reap(/*block=*/true);
}

RankProcesses::Process RankProcesses::started(const RankProcess& rank) const {
  ProcessOptions process{.command = options_.command,
                         .environment = rank.environment,
                         .default_environment = options_.default_environment,
                         .own_group = own_groups_,
                         .cpus = rank.cpus,
                         .blocked = options_.blocked};
  if (processes_.empty() && options_.progress_fd >= 0) process.descriptors.emplace_back(options_.progress_fd, 3);
  if (options_.record_fd >= 0) {
    process.descriptors.emplace_back(options_.record_fd, options_.record_fd);
    process.environment[recorder::kRecordVariable] = std::to_string(options_.record_fd);
  }
  Process entry{.rank = rank.rank};
  // The write ends of the pipes. This process must close its copies after the fork, or it would never see the end of
  // the streams.
  std::vector<int> theirs;
  if (options_.forwards_output) {
    const auto prefix = options_.prefix.empty() ? "" : fmt::format("[{} {}] ", options_.prefix, rank.rank);
    const Pipe output = make_pipe(), error = make_pipe();
    theirs = {output[1], error[1]};
    process.descriptors.insert(process.descriptors.end(), {{output[1], STDOUT_FILENO}, {error[1], STDERR_FILENO}});
    entry.streams.emplace_back(OutputLinesOptions{output[0], &options_.output->standard_output(), prefix,
                                                  log_file_of(rank, "stdout.log", rank.logs_output)});
    entry.streams.emplace_back(OutputLinesOptions{error[0], &options_.output->standard_error(), prefix,
                                                  log_file_of(rank, "stderr.log", rank.logs_error)});
  }
  const auto close_theirs = [&] { std::for_each(theirs.begin(), theirs.end(), close); };
  try {
    entry.pid = start_process(process);
  } catch (...) {
    close_theirs();
    throw;
  }
  close_theirs();
  return entry;
}

void RankProcesses::start_anew(const RankProcess& rank) {
  const auto place = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const auto& process) { return process.rank == rank.rank; });
  ensure(place != processes_.end() && place->exit_code, "only a process that has ended is started anew");
  *place = started(rank);
  std::vector<const Process*> ended;
  for (const auto& process : processes_) {
    if (process.exit_code) ended.push_back(&process);
  }
  std::sort(ended.begin(), ended.end(), [](const auto* a, const auto* b) { return a->ended_at < b->ended_at; });
  failed_code_ = 0;
  for (const auto* process : ended) note_failure(*process);
}

void RankProcesses::add_to(std::vector<pollfd>& waiting) const {
  for (const auto& process : processes_) {
    for (const auto& stream : process.streams) {
      if (stream.descriptor() >= 0 && !stream.must_wait()) waiting.push_back({stream.descriptor(), POLLIN, 0});
    }
  }
}

// Output is read before processes are reaped, so that the last line is known when a failure is noted.
void RankProcesses::advance() {
  for (auto& process : processes_) {
    for (auto& stream : process.streams) stream.forward();
  }
  reap(/*block=*/false);
  if (deadline_ && Clock::now() > *deadline_) signal(SIGKILL);
}

void RankProcesses::signal(int signal) const {
  for (const auto& process : processes_) {
    if (process.exit_code) continue;
    const auto target = own_groups_ ? -process.pid : process.pid;
    kill(target, signal);
    if (signal != SIGKILL) kill(target, SIGCONT);  // a stopped rank does not act on any other signal
  }
}

void RankProcesses::signal_handlers(int signal) const {
  for (const auto& process : processes_) {
    if (!process.exit_code && handles(process.pid, signal)) kill(process.pid, signal);
  }
}

void RankProcesses::stop(std::chrono::milliseconds grace) {
  if (stopping_) return;
  stopping_ = true;
  signal(SIGTERM);
  end_after(grace);
}

// An earlier deadline stays: a second request must not extend the first one.
void RankProcesses::end_after(std::chrono::milliseconds grace) {
  const auto deadline = Clock::now() + grace;
  deadline_ = deadline_ ? std::min(*deadline_, deadline) : deadline;
}

void RankProcesses::reap(bool block) {
  for (auto& process : processes_) {
    if (process.exit_code) continue;
    int status = 0;
    rusage usage{};
    // wait4 per process, not waitpid(-1): other code of this process may have children of its own.
    if (wait4(process.pid, &status, block ? 0 : WNOHANG, &usage) != process.pid) continue;
    peak_rss_bytes_ += usage.ru_maxrss * 1024;
    record_exit(process, status);
  }
}

void RankProcesses::record_exit(Process& process, int status) {
  process.exit_code = exit_code_of_status(status);
  process.was_killed = WIFSIGNALED(status);
  process.was_stopped = stopping_;
  process.ended_at = Clock::now();
  if (own_groups_) kill(-process.pid, stopping_ ? SIGKILL : SIGTERM);  // descendants that are still running
  for (auto& stream : process.streams) stream.drain();
  note_failure(process);
}

// Decides which failure is the cause. After stop(), failures are consequences and do not count.
void RankProcesses::note_failure(const Process& process) {
  const bool is_first = failed_code_ == 0;
  // Several ranks may have ended since the last check. A rank killed by a signal is the likely cause: the others fail
  // because their peer disappeared.
  const bool is_cause = process.was_killed && failed_code_ <= 128;
  if (process.was_stopped || process.exit_code == 0 || !(is_first || is_cause)) return;
  failed_ = static_cast<std::size_t>(&process - processes_.data());
  failed_code_ = *process.exit_code;
}

bool RankProcesses::have_ended() const {
  return std::all_of(processes_.begin(), processes_.end(), [&](const Process& process) {
    // Another process, such as a daemon that the rank started, may hold a pipe open. After stop() it is not waited for
    // at all, and otherwise only for a short time.
    const bool is_open = std::any_of(process.streams.begin(), process.streams.end(),
                                     [](const auto& stream) { return stream.descriptor() >= 0; });
    return process.exit_code && (stopping_ || !is_open || Clock::now() - process.ended_at > kPipeDrainTimeout);
  });
}

bool RankProcesses::has_success() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Process& process) { return process.exit_code == 0 && !process.was_stopped; });
}

std::optional<RankFailure> RankProcesses::failure() const {
  if (failed_code_ == 0) return std::nullopt;
  return failure_of(processes_[failed_]);
}

std::optional<RankFailure> RankProcesses::failure_of(int rank) const {
  for (const auto& process : processes_) {
    if (process.rank == rank && process.exit_code.value_or(0) != 0) return failure_of(process);
  }
  return std::nullopt;
}

RankFailure RankProcesses::failure_of(const Process& process) const {
  RankFailure failure{process.rank, *process.exit_code,
                      fmt::format("rank {} {}", process.rank, describe_exit_code(*process.exit_code))};
  if (!process.streams.empty() && !process.streams.back().last_line().empty())
    failure.message += ": " + process.streams.back().last_line();
  // Ranks that exited early with code 0 are often the real mistake: the failed rank waited for them in a collective.
  std::vector<int> left;
  for (const auto& other : processes_) {
    if (other.exit_code == 0 && !other.was_stopped) left.push_back(other.rank);
  }
  if (!left.empty())
    failure.message +=
        fmt::format(" (rank{} {} ended with exit code 0)", left.size() > 1 ? "s" : "", fmt::join(left, ", "));
  return failure;
}

std::vector<recorder::ProcessEnd> RankProcesses::ends() const {
  std::vector<recorder::ProcessEnd> ends;
  for (const auto& process : processes_) {
    const bool has_ended = process.exit_code && !process.was_stopped;
    const bool has_failed = has_ended && *process.exit_code != 0;
    ends.push_back({has_ended, has_failed ? "it " + describe_exit_code(*process.exit_code) : ""});
  }
  return ends;
}

}  // namespace accel::launcher
