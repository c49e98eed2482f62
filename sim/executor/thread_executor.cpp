// Plain threads instead of oneTBB, for builds with ThreadSanitizer: it sees all of their synchronisation,
// whereas Debian's libtbb is not instrumented and would give false reports. `parallel_for` is serial, because
// the point of such a build is to check the engine, not to be fast.
#include <thread>
#include <vector>

#include "reference/core/system/resource_limits.hpp"
#include "sim/engine/executor.hpp"

namespace accel::sim {
namespace {

class ThreadExecutor : public Executor {
 public:
  ~ThreadExecutor() override { join_all(); }

  void start(int num_tasks, std::function<void(int)> task) override {
    for (int index = 0; index < num_tasks; ++index)
      threads_.push_back(start_thread("ranks", [task, index] { task(index); }));
  }

  void join() override { join_all(); }

  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t index = 0; index < count; ++index) body(index);
  }

 private:
  void join_all() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_executor() { return std::make_unique<ThreadExecutor>(); }

}  // namespace accel::sim
