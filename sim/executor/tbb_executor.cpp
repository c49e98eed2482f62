// Note [Rank arena]
// `global_control` allows as many threads as the largest world needs, always the same number: TBB fixes its
// limit when the process first uses it, so a small run would otherwise limit a later large one. An arena of
// ranks + 1 slots holds one long task per rank, so every rank has its own thread and may block. Once all have
// started, no rank task is left to steal. Parallel work goes to a second arena with one slot per hardware
// thread, isolated, so that a waiting thread never runs work of another rank.
//
// Note [Time slices]
// Linux 6.12 and later grant a thread the time slice it requests, and the thread with the shorter slice runs first when
// it wakes. Ranks wake each other all the time, so they request the shortest one: with the default of 3 ms, and more
// so with long slices, each wake beside a busy process waits until that process has used up its own slice. 200 runs of
// 4 ranks beside two busy processes took 12 s with slices of 100 ms and 0.33 s with 0.1 ms. A step of 64 ranks takes
// the same time with both: a rank that continues is not preempted by ranks that wake.
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reference/core/system/resource_limits.hpp"
#include "sim/engine/executor.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

// Linux's struct sched_attr. Its header conflicts with <sched.h> on Debian 12, so it is declared here.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;
};

constexpr std::uint64_t kTimeSliceNanoseconds = 100'000;  // the shortest slice that Linux grants

constexpr std::size_t kThreadStackBytes = 4 << 20;  // as TBB
constexpr int kOtherThreads = 4;                    // the compute arena of a small machine, and autograd

// What the threads of check_threads wait for.
struct Barrier {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;

  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
};

// The first allocation of a thread reserves address space for an arena, as it does in a rank.
void* wait_at(void* argument) {
  const auto allocated = std::make_unique<std::string>(100, ' ');
  auto& barrier = *static_cast<Barrier*>(argument);
  std::unique_lock lock(barrier.mutex);
  barrier.changed.wait(lock, [&] { return barrier.is_open; });
  return nullptr;
}

// Requests it for this thread; see Note [Time slices]. Older kernels ignore the request, and errors do not matter.
void request_short_time_slices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0 || attributes.policy != SCHED_OTHER)
    return;
  attributes.runtime = kTimeSliceNanoseconds;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// TBB ends the process if it cannot start a thread ("terminate called"), so the threads of the largest run so far are
// tried before. They need address space for their stacks, which counts too.
void check_threads(int num_threads) {
  static std::atomic<int> num_checked{0};
  if (num_threads <= num_checked) return;
  std::vector<pthread_t> threads;
  Barrier end;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kThreadStackBytes);
  int problem = 0;
  while (problem == 0 && static_cast<int>(threads.size()) < num_threads + kOtherThreads) {
    pthread_t thread{};
    problem = pthread_create(&thread, &attributes, &wait_at, &end);
    if (problem == 0) threads.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  end.open();
  for (const auto thread : threads) pthread_join(thread, nullptr);
  check_config(problem == 0, "ranks: {} simulated ranks need {} threads, and {} could be started: {}", num_threads,
               num_threads + kOtherThreads, threads.size(), describe_system_error(problem));
  num_checked = num_threads;
}

class TbbExecutor : public Executor {
 public:
  ~TbbExecutor() override { wait_for_tasks(); }

  // `enqueue` starts the tasks without a thread that waits for them.
  void start(int num_tasks, std::function<void(int)> task) override {
    check_threads(num_tasks);
    limit_ = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, World::kMaxRanks + 2);
    ranks_ = std::make_unique<tbb::task_arena>(num_tasks + 1, /*reserved_for_masters=*/1);
    num_running_ = num_tasks;
    task_ = std::move(task);  // TBB may destroy what it has run after the last task has reported its end
    for (int index = 0; index < num_tasks; ++index) {
      ranks_->enqueue([this, index] {
        request_short_time_slices();
        task_(index);
        const std::lock_guard lock(mutex_);
        if (--num_running_ == 0) all_ended_.notify_all();
      });
    }
  }

  void join() override { wait_for_tasks(); }

  // Isolation matters because the caller is a rank: without it, its thread could run another rank's loop while
  // it waits, with that rank's thread-local state (grad mode, autocast) missing.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) override {
    compute_.execute([&] {
      tbb::this_task_arena::isolate(
          [&] { tbb::parallel_for(std::int64_t{0}, count, [&](std::int64_t i) { body(i); }); });
    });
  }

 private:
  void wait_for_tasks() {
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [&] { return num_running_ == 0; });
  }

  std::function<void(int)> task_;
  std::unique_ptr<tbb::global_control> limit_;
  std::unique_ptr<tbb::task_arena> ranks_;
  tbb::task_arena compute_{static_cast<int>(std::thread::hardware_concurrency()), /*reserved_for_masters=*/1};
  std::mutex mutex_;
  std::condition_variable all_ended_;
  int num_running_ = 0;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Executor> make_executor() { return std::make_unique<TbbExecutor>(); }

}  // namespace accel::sim
