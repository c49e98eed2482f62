#include "backends/process/pending_works.hpp"

#include <algorithm>

namespace accel::process {

PendingWorks& PendingWorks::of_this_thread() {
  thread_local PendingWorks works;
  return works;
}

void PendingWorks::add(const c10::intrusive_ptr<ProcessWork>& work) {
  works_.emplace_back(work);
  start();
}

void PendingWorks::forget() {
  std::erase_if(works_, [](const auto& reference) {
    const auto work = reference.lock();
    return !work || work->is_over();
  });
  if (works_.empty()) stop();
}

void PendingWorks::touch(const at::Tensor& tensor, bool writes, const char* op) {
  if (!has_memory(tensor)) return;
  const auto memory = memory_range(tensor);
  for (const auto& reference : works_) {
    const auto work = reference.lock();
    if (work && !work->is_over() && work->overlaps(memory, writes))
      work->report_touch(std::string(writes ? "changed by " : "read by ") + op);
  }
}

}  // namespace accel::process
