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

/// Threads that read batches ahead. Worker w is one sequential stream: it takes every n-th batch, in order, and draws
/// from a generator of its own, which is its thread's default one. What a task throws is thrown by its future.
///
/// Thread rule: `submit` from one thread.
class Workers {
 public:
  /// One worker a generator; the first task goes to worker `first`.
  explicit Workers(std::vector<at::Generator> generators, int first = 0);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Queues a task at the next worker in turn.
  void submit(std::function<void()> task);
  /// Queues a task at one worker.
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
