// Records losses and parameter hashes. Ranks append to their own lists under one mutex; the lists are short
// (one entry per step), so contention does not matter.
#include "sim/ranks/step_recorder.hpp"

namespace accel::sim {

void StepRecorder::add_loss(int rank, double loss) {
  const MutexLock lock(mutex_);
  auto& own = losses_[rank];
  own.push_back({.rank = rank, .step = static_cast<std::int64_t>(own.size()), .loss = loss});
}

// All ranks and updates normally have the same parameter names, so one list is shared: a copy per update would
// dominate the memory of long runs.
void StepRecorder::add_update(int rank, std::vector<std::string> names, const std::vector<ParameterState>& states) {
  std::vector<std::uint64_t> hashes;
  for (const auto& state : states) hashes.push_back(state.hash);
  const MutexLock lock(mutex_);
  if (!names_ || *names_ != names) names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  auto& own = updates_[rank];
  own.push_back(
      {.rank = rank, .update = static_cast<std::int64_t>(own.size()), .names = names_, .hashes = std::move(hashes)});
}

StepRecords StepRecorder::records() const {
  const MutexLock lock(mutex_);
  StepRecords records;
  for (const auto& own : losses_) records.losses.insert(records.losses.end(), own.begin(), own.end());
  for (const auto& own : updates_) records.updates.insert(records.updates.end(), own.begin(), own.end());
  return records;
}

}  // namespace accel::sim
