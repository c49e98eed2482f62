#pragma once

#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "reference/core/errors.hpp"

/// Errors of system calls that a limit of the process or of the machine makes fail: one sentence that names the limit,
/// its value, and how to raise it.
///
///     const int descriptor = checked_descriptor(eventfd(0, EFD_CLOEXEC), "the output of the ranks");
///     auto thread = start_thread("a thread that writes output", [] { ... });
///
/// Thread rule: any thread.
namespace accel {

/// Describes a value of errno. For a limit: "the limit of 256 open files per process is reached; raise it with
/// `ulimit -n 4096`".
std::string describe_system_error(int reason);

/// The text of another library's error for a user: the C library's words for a limit become the sentence above.
std::string name_limits(std::string text);

/// The text of an error for a user. Errors of the standard library that come from a limit, such as std::bad_alloc and
/// those of std::filesystem, name the limit.
std::string message_of(const std::exception& error);

/// Returns `descriptor`. Throws ConfigError with the reason in errno if it is negative.
int checked_descriptor(int descriptor, const std::string& purpose);

/// Throws ConfigError if one process can have no `needed` open files. The soft limit is raised first if that helps, so
/// call it before files are counted, with an estimate that is not too low.
void require_open_files(std::size_t needed, const std::string& purpose);

/// As std::thread, but throws ConfigError if the thread cannot be started.
template <typename Function>
std::thread start_thread(const std::string& purpose, Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw ConfigError(purpose + ": " + describe_system_error(error.code().value()));
  }
}

}  // namespace accel
