#include "sim/backend/step_recorder.hpp"

namespace accel::sim {

void StepRecorder::add_loss(int rank, double loss) {
  const MutexLock lock(mutex_);
  auto& own = losses_[rank];
  own.push_back({.rank = rank, .step = static_cast<std::int64_t>(own.size()), .loss = loss});
}

void StepRecorder::add_update(int rank, std::vector<std::pair<std::string, std::uint64_t>> parameters) {
  const MutexLock lock(mutex_);
  auto& own = updates_[rank];
  own.push_back({.rank = rank, .update = static_cast<std::int64_t>(own.size()), .parameters = std::move(parameters)});
}

StepRecords StepRecorder::records() const {
  const MutexLock lock(mutex_);
  StepRecords records;
  for (const auto& own : losses_) records.losses.insert(records.losses.end(), own.begin(), own.end());
  for (const auto& own : updates_) records.updates.insert(records.updates.end(), own.begin(), own.end());
  return records;
}

}  // namespace accel::sim
