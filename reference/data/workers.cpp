#include "reference/data/workers.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>

#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {

Workers::Workers(std::vector<at::Generator> generators, Options options) : options_(std::move(options)) {
  for (auto& generator : generators) {
    const auto& worker = workers_.emplace_back(std::make_shared<Worker>());
    worker->generator = std::move(generator);
    worker->num_left = 1;  // init counts as a task
    std::function<void()> init;
    if (options_.init) init = [init = options_.init, number = size() - 1] { init(number); };
    try {
      threads_.push_back(start_thread(fmt::format("num_workers: {}", generators.size()),
                                      [worker, init = std::move(init)] { run(worker, init); }));
    } catch (const ConfigError&) {
      stop();
      throw;
    }
  }
}

// Signals all workers before joining the first one, so that they finish their current tasks in parallel. Queued
// tasks are dropped; their futures are never read, because the stream that owns them is destroyed too.
Workers::~Workers() { stop(); }

void Workers::stop() {
  for (auto& worker : workers_) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->stop = true;
    }
    worker->changed.notify_one();
  }
  for (auto& thread : threads_) has_given_up_ ? thread.detach() : thread.join();
}

// The lock is released before the notification, so that the woken worker does not block on it.
void Workers::queue(int index, std::function<void()> task) {
  auto& worker = *workers_[index];
  {
    const std::lock_guard lock(worker.mutex);
    worker.tasks.push_back(std::move(task));
    ++worker.num_left;
  }
  worker.changed.notify_one();
}

// Each task may take as long as the timeout permits.
void Workers::finish() {
  for (int index = 0; index < size(); ++index) {
    auto& worker = *workers_[index];
    std::unique_lock lock(worker.mutex);
    for (auto num_left = worker.num_left; num_left > 0; num_left = worker.num_left) {
      const auto is_done = [&] { return worker.num_left < num_left; };
      if (options_.timeout <= 0) {
        worker.task_ended.wait(lock, is_done);
      } else if (!worker.task_ended.wait_for(lock, std::chrono::duration<double>(options_.timeout), is_done)) {
        lock.unlock();
        give_up(index);
      }
    }
  }
}

void Workers::set_generator_states(const std::vector<at::Tensor>& states) {
  for (std::size_t worker = 0; worker < states.size(); ++worker) {
    if (states[worker].defined()) workers_[worker]->generator.set_state(states[worker]);
  }
}

std::vector<at::Tensor> Workers::generator_states() const {
  std::vector<at::Tensor> states;
  for (const auto& worker : workers_) states.push_back(worker->generator.get_state());
  return states;
}

void Workers::give_up(int worker) {
  has_given_up_ = true;
  throw Error(
      fmt::format("DataLoader: worker {} has not read a batch for {} s (timeout); check what its dataset waits for, or "
                  "raise timeout",
                  worker, options_.timeout));
}

// Tasks are calls of a packaged_task, which stores exceptions in its future, so none leaves this function.
void Workers::run(const std::shared_ptr<Worker>& shared, const std::function<void()>& init) {
  // One intra-op thread: parallelism comes from the number of workers. A new thread does not inherit the setting.
  at::set_num_threads(1);
  auto& worker = *shared;
  const auto end_task = [&worker] {
    {
      const std::lock_guard lock(worker.mutex);
      --worker.num_left;
    }
    worker.task_ended.notify_one();
  };
  const GeneratorScope scope(worker.generator);
  try {
    if (init) init();
  } catch (...) {
    worker.failure = std::current_exception();
  }
  end_task();
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(worker.mutex);
      worker.changed.wait(lock, [&] { return worker.stop || !worker.tasks.empty(); });
      if (worker.stop) return;
      task = std::move(worker.tasks.front());
      worker.tasks.pop_front();
    }
    task();
    end_task();
  }
}

}  // namespace accel
