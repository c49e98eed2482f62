// The kernel's files about another process, see proc(5). What cannot be read belongs to a thread that has ended.
#include "sim/programs/processes/rank_threads.hpp"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "reference/core/system/task_stat.hpp"

namespace accel::programs {
namespace {

constexpr auto kSampleInterval = std::chrono::milliseconds(100);
constexpr double kIdleLoad = 0.01;  // of a processor: threads that watch something, such as a progress bar's

bool contains(std::span<const pid_t> threads, pid_t thread) {
  return std::find(threads.begin(), threads.end(), thread) != threads.end();
}

std::string folder_of(pid_t process, pid_t thread) { return fmt::format("/proc/{}/task/{}", process, thread); }

// Where a sleeping thread waits in the kernel.
std::string wait_channel_of(pid_t process, pid_t thread) {
  std::ifstream file(folder_of(process, thread) + "/wchan");
  std::string text;
  std::getline(file, text);
  return text;
}

double processor_seconds_of(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code ended;
  for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", process), ended), end;
       !ended && task != end; task.increment(ended)) {
    threads.push_back(std::stoi(task->path().filename()));
  }
  return threads;
}

}  // namespace

void RankThreads::add(const process::Sender& sender) {
  const MutexLock lock(mutex_);
  num_threads_ = sender.num_threads;
  samples_.clear();
  if (!contains(callers_, sender.thread)) callers_.push_back(sender.thread);
}

bool RankThreads::all_wait(std::span<const pid_t> waiting) {
  const MutexLock lock(mutex_);
  if (waiting.size() < num_threads_) return false;
  if (callers_.size() == 1) return true;
  if (process_.pid == 0) return false;  // whoever has forked it is about to record it
  std::erase_if(callers_, [&](pid_t thread) {
    return !contains(waiting, thread) && access(folder_of(process_.pid, thread).c_str(), F_OK) != 0;
  });
  return std::all_of(callers_.begin(), callers_.end(), [&](pid_t thread) { return contains(waiting, thread); });
}

// A sleeping thread of which nothing is known may be a library's, which sleeps and looks around forever.
bool RankThreads::is_busy(pid_t thread, std::span<const pid_t> waiting) const {
  const auto stat = task_stat(folder_of(process_.pid, thread));
  if (stat.starts_with('R') || stat.starts_with('D')) return true;
  if (!stat.starts_with('S') || !contains(callers_, thread) || contains(waiting, thread)) return false;
  return wait_channel_of(process_.pid, thread).find("nanosleep") != std::string::npos;
}

bool RankThreads::is_any_busy(std::span<const pid_t> waiting) const {
  for (const auto thread : threads_of(process_.pid)) {
    if (is_busy(thread, waiting)) return true;
  }
  return false;
}

bool RankThreads::are_busy(std::span<const pid_t> waiting) {
  const MutexLock lock(mutex_);
  return is_any_busy(waiting);
}

bool RankThreads::have_been_idle(std::span<const pid_t> waiting) {
  const MutexLock lock(mutex_);
  const auto now = Clock::now();
  if (samples_.empty() || now - samples_.back().time >= kSampleInterval)
    samples_.push_back({now, processor_seconds_of(process_.pid), is_any_busy(waiting)});
  while (samples_.size() > 1 && now - samples_[1].time >= kIdleTime) samples_.pop_front();
  const auto& first = samples_.front();
  const std::chrono::duration<double> seconds = now - first.time;
  if (seconds < kIdleTime) return false;
  const auto num_busy = std::count_if(samples_.begin(), samples_.end(), [](const auto& one) { return one.is_busy; });
  return samples_.back().processor_seconds - first.processor_seconds < kIdleLoad * seconds.count() &&
         2 * num_busy < std::ssize(samples_);
}

}  // namespace accel::programs
