#include "reference/data/workers.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>

#include "reference/core/random.hpp"

namespace accel {

Workers::Workers(std::vector<at::Generator> generators, int first) : next_(static_cast<std::size_t>(first)) {
  for (auto& generator : generators) {
    auto& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.thread = std::thread([&worker, generator = std::move(generator)] { run(worker, generator); });
  }
}

// Signals all workers before joining the first one, so that they finish their current tasks in parallel. Queued
// tasks are dropped; their futures are never read, because the stream that owns them is destroyed too.
Workers::~Workers() {
  for (auto& worker : workers_) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->stop = true;
    }
    worker->changed.notify_one();
  }
  for (auto& worker : workers_) worker->thread.join();
}

void Workers::submit(std::function<void()> task) {
  submit_to(static_cast<int>(next_++ % workers_.size()), std::move(task));
}

// The lock is released before the notification, so that the woken worker does not block on it.
void Workers::submit_to(int index, std::function<void()> task) {
  auto& worker = *workers_[index];
  {
    const std::lock_guard lock(worker.mutex);
    worker.tasks.push_back(std::move(task));
  }
  worker.changed.notify_one();
}

// Tasks are calls of a packaged_task, which stores exceptions in its future, so none leaves this function.
void Workers::run(Worker& worker, at::Generator generator) {
  // One intra-op thread: parallelism comes from the number of workers. A new thread does not inherit the setting.
  at::set_num_threads(1);
  const GeneratorScope scope(std::move(generator));
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
  }
}

}  // namespace accel
