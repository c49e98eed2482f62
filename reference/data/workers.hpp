#pragma once

#include <ATen/core/Generator.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace accel {

/// Threads that read batches ahead. Each worker is sequential: it runs every n-th task in order and draws from its own
/// generator, which is the default generator of its thread. An exception of a task is thrown by the task's future.
///
/// Thread rule: call `submit` from one thread.
class Workers {
 public:
  /// Starts one worker per generator. The first task goes to worker `first`.
  explicit Workers(std::vector<at::Generator> generators, int first = 0);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Queues a task for the next worker in turn.
  void submit(std::function<void()> task);
  /// Queues a task for a given worker.
  void submit_to(int worker, std::function<void()> task);

 private:
  struct Worker {
    std::mutex mutex = {};
    std::condition_variable changed = {};
    std::deque<std::function<void()>> tasks;  // guarded by mutex
    bool stop = false;                        // guarded by mutex
    std::thread thread = {};
  };
  static void run(Worker& worker, at::Generator generator);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t next_;
};

}  // namespace accel
