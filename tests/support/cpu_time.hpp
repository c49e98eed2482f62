#pragma once

#include <ctime>

namespace accel::testing {

/// Returns the CPU time of a call in this thread, in seconds. Other programs on the machine do not change it much.
///
///     EXPECT_LT(cpu_seconds([&] { read(file); }), 5);
template <typename F>
double cpu_seconds(F&& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const auto begin = now();
  call();
  return now() - begin;
}

}  // namespace accel::testing
