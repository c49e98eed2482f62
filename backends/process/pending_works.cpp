#include "backends/process/pending_works.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "backends/process/process_work.hpp"

namespace accel::process::pending_works {
namespace {

struct Pending {
  std::uint64_t number = 0;
  std::shared_ptr<RankLink> link;
  std::vector<UsedMemory> memory;
};

// A work whose handle the program has dropped stays here as long as its tensors: it was never waited for.
struct Registry {
  std::mutex mutex;
  std::vector<Pending> works;
  pid_t process = 0;  // a process that the rank forks has a copy, and is no rank
};
Registry& registry() {
  static auto* registry = new Registry;  // outlives the threads and works that end after main
  return *registry;
}

// `how` and `op` are joined only if there is something to report: every call and operator comes here.
void report_conflicts(const MemoryRange& range, bool writes, std::string_view how, std::string_view op) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  if (getpid() != all.process) return;
  for (const auto& work : all.works) {
    if (std::none_of(work.memory.begin(), work.memory.end(),
                     [&](const UsedMemory& used) { return used.conflicts_with(range, writes); }))
      continue;
    const auto what = std::string(how).append(op);
    work.link->post_before_next(begin_request(Request::kTouch, {}).put(work.number).put(std::string_view(what)));
  }
}

class Watch : private OperatorWatch {
 public:
  ~Watch() override { stop(); }
  using OperatorWatch::start;
  using OperatorWatch::stop;

 private:
  void touch(const MemoryRange& range, bool writes, const char* op) override {
    report_conflicts(range, writes, writes ? "changed by " : "read by ", op);
  }
};
Watch& watch_of_this_thread() {
  thread_local Watch watch;
  return watch;
}

}  // namespace

void add(const std::shared_ptr<RankLink>& link, std::uint64_t number, std::vector<UsedMemory> memory) {
  {
    auto& all = registry();
    const std::lock_guard lock(all.mutex);
    all.process = getpid();
    std::erase_if(all.works, [](const Pending& work) { return are_freed(work.memory); });
    all.works.push_back({.number = number, .link = link, .memory = std::move(memory)});
  }
  watch_of_this_thread().start();
}

void check(const std::vector<UsedMemory>& memory, std::string_view op) {
  for (const auto& used : memory) report_conflicts(used.range, used.is_written, "passed to ", op);
}

void forget(std::uint64_t number) {
  bool is_empty = false;
  {
    auto& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.works, [number](const Pending& work) { return work.number == number; });
    is_empty = all.works.empty();
  }
  if (is_empty) watch_of_this_thread().stop();
}

}  // namespace accel::process::pending_works
