#include "sim/ranks/newcomers.hpp"

#include <vector>

namespace accel::sim {

bool Newcomers::wait_for_start(int rank) {
  if (faults_ == nullptr || !world_.is_elastic() || runs_after(world_.process_changes(), rank)) return false;
  const auto meeting = std::make_shared<Meeting>();
  {
    const MutexLock lock(mutex_);
    const auto start = faults_->next_start(rank);
    if (!start || is_closed_) return false;
    sleepers_[rank] = {.start = *start, .meeting = meeting};
  }
  world_.sleep(rank, meeting);
  const MutexLock lock(mutex_);
  return sleepers_.extract(rank).mapped().is_started;
}

// Nobody is started while another change of processes is under way: start_process returns false then.
bool Newcomers::may_complete(std::int64_t step, std::size_t num_changes) {
  std::vector<std::shared_ptr<Meeting>> woken;
  {
    const MutexLock lock(mutex_);
    if (is_closed_) return true;
    if (interruption_ && num_changes < interruption_->num_changes && step >= interruption_->step) return false;
    if (step <= completed_) return true;
    for (auto& [rank, sleeper] : sleepers_) {
      const bool is_due = !sleeper.is_started && sleeper.start.after_steps < step;
      if (!is_due || !world_.start_process(rank, sleeper.start.notice_seconds, num_changes)) continue;
      sleeper.is_started = true;
      interruption_ = {.step = step, .num_changes = ++num_changes};
      faults_->on_start(world_, rank);
      woken.push_back(sleeper.meeting);
    }
    if (woken.empty()) completed_ = step;
  }
  for (const auto& meeting : woken) world_.end(*meeting);
  return woken.empty();
}

void Newcomers::close() {
  std::vector<std::shared_ptr<Meeting>> woken;
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    for (const auto& [rank, sleeper] : sleepers_) woken.push_back(sleeper.meeting);
  }
  for (const auto& meeting : woken) world_.end(*meeting);
}

}  // namespace accel::sim
