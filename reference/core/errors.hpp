#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

/// Everything that this library throws. A type of its own exists only where a caller can react to it.
///
///     check_argument(batch_size > 0, "batch_size: expected a positive number, got {}", batch_size);
///
/// Thread rule: values, safe to throw and to copy between threads.
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

/// Calls in an order that has no meaning.
class StateError : public Error {
 public:
  using Error::Error;
};

/// A collective failed: a mismatched call, a lost peer, a timeout.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Ranks called one operation with values that do not fit together; told on every rank, before anything is exchanged.
class DistributedOperationException : public CommError {
 public:
  using CommError::CommError;
};

/// What is on disk does not match what was asked for.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Our own invariant broke. Checked in release builds too.
class InternalError : public Error {
 public:
  using Error::Error;
};

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
