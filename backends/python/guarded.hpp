#pragma once

#include <exception>
#include <string>

#define ACCEL_EXPORT [[gnu::visibility("default")]]

/// How the C functions report errors.
namespace accel::python {

/// What accel_error returns.
inline std::string& error_of_this_thread() {
  thread_local std::string text;
  return text;
}

/// Runs `function`. No exception may leave a function of the library: returns `failed` instead.
template <typename Function>
auto guarded(Function&& function, decltype(function()) failed) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    error_of_this_thread() = error.what();
    return failed;
  }
}

}  // namespace accel::python
