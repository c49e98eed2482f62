#pragma once

#include <exception>
#include <string>

namespace accel::testing {

/// Returns the message of a run's error, or "" if nothing was thrown.
inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

/// Returns the message of the E that `call` throws, or "" if it throws nothing.
template <typename E, typename F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace accel::testing
