#include "sim/programs/processes/supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "backends/launch/process.hpp"
#include "backends/process/watched_writes.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/system/futex.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/core/system/task_stat.hpp"
#include "sim/engine/run_error.hpp"

namespace accel::programs {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);
constexpr auto kGrace = std::chrono::seconds(2);  // for a rank to end after the run has failed
constexpr launcher::FlushLimits kFlushLimits{.idle = std::chrono::seconds(5), .total = std::chrono::seconds(30)};
constexpr std::size_t kOtherOpenFiles = 24;
constexpr auto kDrainLimit = std::chrono::seconds(1);  // for output that a descendant of a rank keeps open

constexpr auto kStopCheckInterval = std::chrono::seconds(1);
constexpr int kStopChecksMax = 5;

bool is_stopped(pid_t pid) { return task_stat(fmt::format("/proc/{}", pid)).starts_with('T'); }

}  // namespace

std::string preload_of_write_watcher() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const auto others = environment("LD_PRELOAD").value_or("");
  return process::write_watcher(folder) + (others.empty() ? "" : ":" + others);
}

RankProgram with_watched_writes(RankProgram program) {
  program.environment["LD_PRELOAD"] = preload_of_write_watcher();
  return program;
}

// The processes are started by the thread that lives as long as they should: the kernel kills them when it ends.
Supervisor::Supervisor(RankProgram program, std::shared_ptr<process::SharedArea> area)
    : program_(std::move(program)),
      area_(std::move(area)),
      ranks_(area_->num_ranks()),
      thread_(start_thread("the thread that watches the ranks", [this] { run(); })) {
  has_started_.wait(false);
  if (!start_error_) return;
  thread_.join();
  std::rethrow_exception(start_error_);
}

Supervisor::~Supervisor() {
  must_end_ = true;
  if (thread_.joinable()) thread_.join();
}

void Supervisor::run() {
  if (!program_.command.empty()) prctl(PR_SET_CHILD_SUBREAPER, 1);  // adopts what a rank leaves behind
  try {
    start();
  } catch (...) {
    start_error_ = std::current_exception();
  }
  has_started_ = true;
  has_started_.notify_all();
  while (!start_error_ && !have_ended()) {
    forward_output(kTick);
    reap();
    report_ends();
    report_stopped_ranks();
    stop_late_ranks();
  }
  if (!program_.command.empty()) end_children();
  output_.flush(kFlushLimits);
  is_over_ = true;
  is_over_.notify_all();
}

// Own ones after a failed start, and adopted ones, such as workers of a rank's loader.
void Supervisor::end_children() {
  while (true) {
    std::vector<pid_t> children;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "children");
      children.insert(children.end(), std::istream_iterator<pid_t>(file), {});
    }
    if (children.empty()) return;
    for (const auto pid : children) kill(pid, SIGKILL);
    for (const auto pid : children) waitpid(pid, nullptr, 0);
  }
}

// Creates the pipes of a rank's output, and returns the ends to write to.
std::vector<int> Supervisor::open_streams(int rank) {
  std::vector<int> theirs;
  const auto prefix = program_.prefix.empty() ? "" : fmt::format("[{} {}] ", program_.prefix, rank);
  for (auto* out : {&output_.standard_output(), &output_.standard_error()}) {
    std::array<int, 2> ends{};
    checked_descriptor(pipe2(ends.data(), O_CLOEXEC), fmt::format("the output of rank {}", rank));
    ranks_[rank].streams.emplace_back(
        launcher::OutputLinesOptions{.descriptor = ends[0], .out = out, .prefix = prefix, .log_file = ""});
    theirs.push_back(ends[1]);
  }
  return theirs;
}

void Supervisor::start() {
  if (program_.command.empty()) {
    area_->ready() = 1;
    return;
  }
  std::vector<std::vector<int>> outputs;
  const int area = area_->descriptor();
  const auto close_outputs = [&] {
    for (const auto& output : outputs) std::for_each(output.begin(), output.end(), close);
  };
  try {
    require_open_files(kOtherOpenFiles + 4 * static_cast<std::size_t>(area_->num_ranks()),
                       fmt::format("sim-run --processes with {} ranks", area_->num_ranks()));
    for (int rank = 0; rank < area_->num_ranks(); ++rank) outputs.push_back(open_streams(rank));
    if (program_.forks_ranks) {
      launcher::ProcessOptions process{.command = program_.command, .environment = program_.environment};
      process.descriptors.emplace_back(area, area);
      for (const int kept : program_.descriptors) process.descriptors.emplace_back(kept, kept);
      std::string numbers;
      for (const auto& output : outputs) {
        for (const int descriptor : output) {
          process.descriptors.emplace_back(descriptor, descriptor);
          numbers += (numbers.empty() ? "" : ",") + std::to_string(descriptor);
        }
      }
      process.environment["ACCEL_AREA"] = std::to_string(area);
      process.environment["ACCEL_OUTPUTS"] = numbers;
      children_.push_back({.pid = launcher::start_process(process)});
    } else {
      for (int rank = 0; rank < area_->num_ranks(); ++rank) {
        launcher::ProcessOptions process{.command = program_.command, .environment = program_.environment};
        process.environment["ACCEL_AREA"] = std::to_string(area);
        process.environment["ACCEL_AREA_RANK"] = std::to_string(rank);
        process.descriptors = {{area, area}, {outputs[rank][0], STDOUT_FILENO}, {outputs[rank][1], STDERR_FILENO}};
        for (const int kept : program_.descriptors) process.descriptors.emplace_back(kept, kept);
        const auto pid = launcher::start_process(process);
        area_->channel(rank).end.pid = pid;
        children_.push_back({.pid = pid, .rank = rank});
      }
    }
  } catch (...) {
    close_outputs();
    throw;
  }
  close_outputs();
  if (!program_.forks_ranks) area_->ready() = 1;
}

void Supervisor::forward_output(std::chrono::milliseconds limit) {
  std::vector<pollfd> waiting;
  for (const auto& rank : ranks_) {
    for (const auto& stream : rank.streams) {
      if (stream.descriptor() >= 0 && !stream.must_wait()) waiting.push_back({stream.descriptor(), POLLIN, 0});
    }
  }
  output_.add_to(waiting);
  if (poll(waiting.data(), waiting.size(), static_cast<int>(limit.count())) <= 0) return;
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) stream.forward();
  }
}

// The process that forks the ranks records their ends itself. When it is gone, so are they.
void Supervisor::reap() {
  for (auto& child : children_) {
    int status = 0;
    if (child.status || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.status = status;
    ended_at_ = Clock::now();
    if (child.rank >= 0) {
      area_->record_end(child.rank, status);
      continue;
    }
    area_->record_lost_ends(status);
  }
  siginfo_t end{};
  const bool has_starter = program_.starter > 0;
  if (has_starter && waitid(P_PID, program_.starter, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0)
    area_->record_lost_ends(SIGKILL);
  if (program_.watches_processes) record_ends_of_others();
}

// The ranks go on when all of them have joined. So when one has ended, those that have not joined yet never will.
void Supervisor::record_ends_of_others() {
  bool has_any_ended = false;
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    const auto& end = area_->channel(rank).end;
    auto& process = ranks_[rank].process;
    if (!process && end.pid != 0) process = std::make_unique<ProcessWatch>(end.pid);
    if (const auto status = process && end.has_ended == 0 ? process->status() : std::nullopt)
      area_->record_end(rank, *status);
    has_any_ended = has_any_ended || end.has_ended != 0;
  }
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    const auto& end = area_->channel(rank).end;
    if (has_any_ended && end.pid == 0 && end.has_ended == 0) area_->record_end(rank, /*status=*/0);
  }
}

std::shared_ptr<sim::World> Supervisor::world() {
  const std::lock_guard lock(mutex_);
  return world_;
}

std::string Supervisor::reason_of(int rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[rank].reason;
}

std::string Supervisor::after_last_call(sim::World& world, int rank) const {
  const auto last_call = world.last_call_of(rank);
  return last_call.empty() ? "" : "; its last call: " + last_call;
}

// A proxy that waits for a request sees the end itself. One that is blocked in a collective is released here.
void Supervisor::report_ends() {
  const auto world = this->world();
  if (!world) return;
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    const auto& end = area_->channel(rank).end;
    if (ranks_[rank].was_reported || end.has_ended == 0) continue;
    ranks_[rank].was_reported = true;
    const int code = launcher::exit_code_of_status(end.status);
    if (code == 0) continue;
    world->lose(rank, std::make_exception_ptr(sim::ReleasedError(fmt::format("rank {}: its process {}{}", rank,
                                                                             launcher::describe_exit_code(code),
                                                                             after_last_call(*world, rank)))));
  }
  if (!failed_at_ && (is_finishing_ || world->failures().failure())) failed_at_ = Clock::now();
}

// A process that SIGSTOP has stopped would keep the others waiting until their time-out, which is half an hour. A stop
// of the complete job, as by Ctrl-Z, stops this process too and ends before the next check.
void Supervisor::report_stopped_ranks() {
  const auto world = this->world();
  if (!world || failed_at_ || Clock::now() < next_check_for_stops_) return;
  next_check_for_stops_ = Clock::now() + kStopCheckInterval;
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    const auto& end = area_->channel(rank).end;
    auto& num_checks = ranks_[rank].num_checks_stopped;
    num_checks = end.has_ended == 0 && end.pid != 0 && is_stopped(end.pid) ? num_checks + 1 : 0;
    if (num_checks != kStopChecksMax) continue;
    const auto reason =
        fmt::format("its process {} has been stopped by a signal for {} s; continue a process before with kill -CONT{}",
                    end.pid.load(), kStopChecksMax, after_last_call(*world, rank));
    {
      const std::lock_guard lock(mutex_);
      ranks_[rank].reason = reason;
    }
    world->lose(rank, std::make_exception_ptr(Error(reason)));
    if (!program_.watches_processes) kill(end.pid, SIGKILL);
  }
}

// Processes of others get the failure as an exception of their next call, and what they do then is their program's.
void Supervisor::stop_late_ranks() {
  if (program_.watches_processes) return;
  if (!must_end_ && (!failed_at_ || Clock::now() - *failed_at_ < kGrace)) return;
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    const auto& end = area_->channel(rank).end;
    if (end.has_ended != 0 || end.pid == 0) continue;
    ranks_[rank].was_stopped = true;
    kill(end.pid, SIGKILL);
  }
  if (!must_end_) return;
  for (const auto& child : children_) {
    if (!child.status) kill(child.pid, SIGKILL);
  }
}

bool Supervisor::have_ended() const {
  if (program_.watches_processes && (is_finishing_ || must_end_)) return true;
  const auto has_ended = [](const Child& child) { return child.status.has_value(); };
  if (!std::all_of(children_.begin(), children_.end(), has_ended)) return false;
  for (int rank = 0; rank < area_->num_ranks(); ++rank) {
    if (area_->channel(rank).end.has_ended == 0) return false;
  }
  const auto is_open = [](const launcher::OutputLines& stream) { return stream.descriptor() >= 0; };
  const bool has_output = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return std::any_of(rank.streams.begin(), rank.streams.end(), is_open);
  });
  return !has_output || (ended_at_ && Clock::now() - *ended_at_ > kDrainLimit);
}

std::optional<int> Supervisor::wait_until_ready() {
  while (area_->ready() == 0) {
    if (is_over_) {
      const auto status = children_.empty() ? std::nullopt : children_.front().status;
      return status ? launcher::exit_code_of_status(*status) : 1;
    }
    futex_wait(area_->ready(), 0, FutexScope::kProcesses, kTick);
  }
  return std::nullopt;
}

void Supervisor::watch(std::shared_ptr<sim::World> world) {
  const std::lock_guard lock(mutex_);
  world_ = std::move(world);
}

// All proxies have left, so nobody answers a rank that still asks for something.
void Supervisor::finish() {
  is_finishing_ = true;
  is_over_.wait(false);
}

}  // namespace accel::programs
