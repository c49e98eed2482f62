#include "reference/core/system/resource_limits.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>

#include "reference/core/error_text.hpp"

namespace accel {
namespace {

constexpr std::size_t kUsualOpenFiles = 4096;
constexpr std::array<int, 4> kLimits{EMFILE, ENFILE, EAGAIN, ENOMEM};

// nullopt: unlimited.
std::optional<std::size_t> soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::nullopt;
  return limit.rlim_cur;
}

// bash's ulimit -n sets both limits, so the hard one may have to be raised by an administrator.
std::string advice_on_open_files(std::size_t needed) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto raise = fmt::format("raise it with `ulimit -n {}`", needed);
  return limit.rlim_max >= needed ? raise
                                  : raise + fmt::format(
                                                " (the hard limit is {}: as root, or in "
                                                "/etc/security/limits.conf)",
                                                limit.rlim_max);
}

}  // namespace

// EAGAIN and ENOMEM come from threads and processes here; other system calls that return EAGAIN do not report it.
std::string describe_system_error(int reason) {
  const std::string text = std::strerror(reason);
  if (reason == EMFILE) {
    const auto limit = soft_limit(RLIMIT_NOFILE).value_or(0);
    return fmt::format("the limit of {} open files per process is reached; {}", limit,
                       advice_on_open_files(std::max(kUsualOpenFiles, 4 * limit)));
  }
  if (reason == ENFILE)
    return "the machine's limit of open files is reached; raise it with `sysctl fs.file-max`, or end other programs";
  if (reason == EAGAIN) {
    const auto limit = soft_limit(RLIMIT_NPROC), memory = soft_limit(RLIMIT_AS);
    return fmt::format(
        "the limit of threads and processes is reached ({}{}); raise it with `ulimit -u{}`, raise pids.max "
        "of the container, or use fewer ranks",
        limit ? fmt::format("{} per user", *limit) : "unlimited per user, so that of the container",
        memory ? fmt::format(", or {} MiB of address space", *memory >> 20) : "", memory ? "` or `ulimit -v" : "");
  }
  if (reason == ENOMEM) {
    const auto limit = soft_limit(RLIMIT_AS);
    return limit ? fmt::format(
                       "the limit of {} MiB of address space is reached; raise it with `ulimit -v unlimited`, "
                       "or use fewer ranks",
                       *limit >> 20)
                 : text + "; end other programs, or use fewer ranks";
  }
  return text;
}

std::string name_limits(std::string text) {
  for (const int reason : kLimits) {
    const std::string words = std::strerror(reason);
    if (const auto at = text.find(words); at != std::string::npos)
      text.replace(at, words.size(), describe_system_error(reason));
  }
  return text;
}

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "not enough memory: " + describe_system_error(ENOMEM);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return text_of(error);
  const int reason = system->code().value();
  return std::ranges::find(kLimits, reason) != kLimits.end() ? describe_system_error(reason) : text_of(error);
}

int checked_descriptor(int descriptor, const std::string& purpose) {
  if (descriptor < 0) throw ConfigError(purpose + ": " + describe_system_error(errno));
  return descriptor;
}

void require_open_files(std::size_t needed, const std::string& purpose) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  check_config(limit.rlim_max >= needed, "{} needs {} open files, and the limit is {} per process; {}", purpose, needed,
               limit.rlim_max, advice_on_open_files(needed));
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace accel
