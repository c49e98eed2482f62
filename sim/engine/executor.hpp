#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace accel::sim {

/// Runs each rank on its own thread, and the work inside a collective on all cores.
///
/// Thread rule: `start` and `join` from the thread that runs the world; `parallel_for` from any rank.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Starts `task(0) .. task(num_tasks - 1)`, each on its own thread; tasks may block on each other.
  /// `task` must not throw.
  virtual void start(int num_tasks, std::function<void(int)> task) = 0;

  /// Returns when every task has ended.
  virtual void join() = 0;

  /// Calls `body(0) .. body(count - 1)`, possibly in parallel; never runs another rank's task while it waits.
  virtual void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) = 0;
};

/// Returns the executor that the build links: oneTBB's arenas, or plain threads under ThreadSanitizer.
std::unique_ptr<Executor> make_executor();

}  // namespace accel::sim
