#include "sim/programs/processes/process_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "reference/core/system/task_stat.hpp"

namespace accel::programs {
namespace {

// struct pidfd_info of <linux/pidfd.h>, which older headers lack: its first version.
struct ProcessInfo {
  std::uint64_t mask = 0, cgroup = 0;
  std::uint32_t numbers[11] = {};
  std::int32_t exit_code = 0;
};
static_assert(sizeof(ProcessInfo) == 64, "the size is a part of the request's number");
constexpr auto kGetInfo = _IOWR(0xFF, 11, ProcessInfo);
constexpr std::uint64_t kInfoExit = 1u << 3;

// Of a process whose parent must still read it: the last field.
std::optional<int> status_of_zombie(pid_t pid) {
  const auto stat = task_stat(fmt::format("/proc/{}", pid));
  if (!stat.starts_with('Z')) return std::nullopt;
  return std::stoi(stat.substr(stat.rfind(' ')));
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    found.insert(found.end(), std::istream_iterator<pid_t>(file), {});
  }
  return found;
}

}  // namespace

ProcessWatch::ProcessWatch(pid_t pid) : pid_(pid), descriptor_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<int> ProcessWatch::status() const {
  if (descriptor_ < 0) return 0;
  pollfd process{descriptor_, POLLIN, 0};
  if (poll(&process, 1, 0) <= 0) return std::nullopt;
  if (const auto status = status_of_zombie(pid_)) return status;
  ProcessInfo info{.mask = kInfoExit};
  const bool is_known = ioctl(descriptor_, kGetInfo, &info) == 0 && (info.mask & kInfoExit) != 0;
  return is_known ? info.exit_code : 0;
}

void end_adopted_processes(int grace_ms) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(grace_ms);
  while (!children().empty()) {
    if (std::chrono::steady_clock::now() >= limit) {
      for (const auto pid : children()) kill(pid, SIGKILL);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    poll(nullptr, 0, /*timeout=*/5);
  }
}

}  // namespace accel::programs
