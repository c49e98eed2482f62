#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace accel {

/// Waits for the work, and calls `look` every `interval`, which may throw. A wait of c10d::Work that passes its
/// time-out throws and changes nothing, so it can be repeated. Works of several collectives ignore the time-out, so an
/// error that comes early is another one; one that comes late comes early when the wait is repeated. `on_error` is
/// called within the handler of such an error, and throws. Not for messages, which are lost when their wait passes its
/// time-out.
template <typename Look, typename OnError>
bool wait_in_slices(c10d::Work& work, std::chrono::milliseconds timeout, std::chrono::milliseconds interval,
                    const Look& look, const OnError& on_error) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  while (true) {
    const auto slice = Clock::now();
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(slice - begin);
    const bool is_last = timeout != kNoTimeout && timeout - passed <= interval;
    const auto limit = is_last ? std::max(timeout - passed, std::chrono::milliseconds(1)) : interval;
    try {
      return work.wait(limit);
    } catch (const std::exception& error) {
      if (Clock::now() - slice < limit) on_error(error);
      if (is_last) throw;
      look();
    }
  }
}

}  // namespace accel
