#pragma once

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
/// from a generator of its own seeded `base_seed + w`, as Python's worker processes do. What a task throws is thrown by
/// its future.
///
/// Thread rule: `submit` from one thread.
class Workers {
 public:
  Workers(int num_workers, std::uint64_t base_seed);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Queues a task at the next worker in turn.
  void submit(std::function<void()> task);

 private:
  struct Worker {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;  // guarded by mutex
    bool stop = false;                        // guarded by mutex
    std::thread thread;
  };
  static void run(Worker& worker, std::uint64_t seed);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t next_ = 0;
};

}  // namespace accel
