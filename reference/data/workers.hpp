#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// Threads that read batches ahead. Each worker is sequential: it runs its tasks in order and draws from its own
/// generator, which is the default generator of its thread.
///
/// Thread rule: call the methods from one thread.
class Workers {
 public:
  struct Options {
    std::function<void(int worker)> init = {};  ///< called first on each worker's thread
    double timeout = 0;                         ///< seconds that `result` waits; 0: no limit
  };
  /// Starts one worker per generator.
  explicit Workers(std::vector<at::Generator> generators) : Workers(std::move(generators), Options()) {}
  Workers(std::vector<at::Generator> generators, Options options);
  /// Waits for the tasks that workers are running and drops the others.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(workers_.size()); }
  /// Queues a task for a worker. The future also throws what `init` threw on the worker.
  template <typename Task>
  auto submit(int worker, Task task) {
    auto packaged = std::make_shared<std::packaged_task<std::invoke_result_t<Task>()>>(
        [&failure = workers_[worker]->failure, task = std::move(task)]() mutable {
          if (failure) std::rethrow_exception(failure);
          return task();
        });
    auto result = packaged->get_future();
    queue(worker, [packaged] { (*packaged)(); });
    return result;
  }
  /// Returns the result of a task of `worker`. Throws what the task threw, and Error after the timeout; then this
  /// object no longer waits for its threads, which own what their tasks need.
  template <typename Result>
  Result result(std::future<Result>& future, int worker) {
    const auto limit = std::chrono::duration<double>(options_.timeout);
    if (options_.timeout > 0 && future.wait_for(limit) == std::future_status::timeout) give_up(worker);
    return future.get();
  }
  /// Waits until all queued tasks have ended.
  void finish();
  /// True after a time-out.
  [[nodiscard]] bool has_given_up() const { return has_given_up_; }
  /// The states of the workers' generators; an undefined one is not set. Call these functions after `finish`.
  void set_generator_states(const std::vector<at::Tensor>& states);
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;

 private:
  // Shared with its thread, which may outlive this object after a time-out.
  struct Worker {
    std::mutex mutex = {};
    std::condition_variable changed = {}, task_ended = {};
    std::deque<std::function<void()>> tasks = {};  // guarded by mutex
    std::size_t num_left = 0;                      // tasks that have not ended; guarded by mutex
    bool stop = false;                             // guarded by mutex
    at::Generator generator = {};                  // used by the thread while it runs a task
    std::exception_ptr failure = {};               // of init; used by the thread
  };
  void stop();
  static void run(const std::shared_ptr<Worker>& worker, const std::function<void()>& init);
  void queue(int worker, std::function<void()> task);
  [[noreturn]] void give_up(int worker);

  Options options_;
  bool has_given_up_ = false;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace accel
