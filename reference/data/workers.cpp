#include "reference/data/workers.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>

#include "reference/core/random.hpp"

namespace accel {

Workers::Workers(int num_workers, std::uint64_t base_seed) {
  for (int index = 0; index < num_workers; ++index) {
    auto& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.thread = std::thread([&worker, seed = base_seed + static_cast<std::uint64_t>(index)] { run(worker, seed); });
  }
}

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
  auto& worker = *workers_[next_++ % workers_.size()];
  {
    const std::lock_guard lock(worker.mutex);
    worker.tasks.push_back(std::move(task));
  }
  worker.changed.notify_one();
}

void Workers::run(Worker& worker, std::uint64_t seed) {
  at::set_num_threads(1);
  const GeneratorScope scope(make_generator(seed));
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
