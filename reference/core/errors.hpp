#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// Exceptions thrown by this library. A separate type exists only where a caller can react to it.
///
///     check_argument(batch_size > 0, "batch_size: expected a positive number, got {}", batch_size);
///
/// Thread rule: errors are values that may be copied between threads.
namespace accel {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option, file or environment variable is wrong; the message lists all problems found.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A shape, dtype, rank or length does not fit.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A function was called in a state that does not allow it.
class StateError : public Error {
 public:
  using Error::Error;
};

/// A collective failed: a mismatched call, a lost peer or a timeout.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Ranks called the same operation with values that do not match. Thrown on every rank, before any data is exchanged.
class DistributedOperationException : public CommError {
 public:
  using CommError::CommError;
};

/// The data on disk does not match what was requested.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// An internal invariant of this library is broken. Checked in release builds too.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Adds a problem to those of which one error will tell, unless the condition holds.
template <typename... Args>
void note_unless(bool condition, std::vector<std::string>& problems, fmt::format_string<Args...> problem,
                 Args&&... args) {
  if (!condition) problems.push_back(fmt::format(problem, std::forward<Args>(args)...));
}

template <typename... Args>
void check_argument(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw ArgumentError(fmt::format(message, std::forward<Args>(args)...));
}

template <typename... Args>
void check_config(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw ConfigError(fmt::format(message, std::forward<Args>(args)...));
}

template <typename... Args>
void check_checkpoint(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw CheckpointError(fmt::format(message, std::forward<Args>(args)...));
}

template <typename... Args>
void check_state(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw StateError(fmt::format(message, std::forward<Args>(args)...));
}

template <typename... Args>
void ensure(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw InternalError("internal error: " + fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace accel
