#pragma once

#include <exception>
#include <string>

namespace accel::testing {

/// What a run ended with, "" if nothing was thrown.
inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

/// What `call` throws, which must be an E; "" if it throws nothing.
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
