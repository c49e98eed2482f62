#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/comm/parameter_state.hpp"
#include "reference/core/thread_safety.hpp"

namespace accel::sim {

/// The loss of one rank's micro-batch, as passed to backward.
struct LossRecord {
  int rank = 0;
  std::int64_t step = 0;  ///< from 0
  double loss = 0;        ///< the first element of the loss
};

/// One rank's parameters after an update.
struct UpdateRecord {
  int rank = 0;
  std::int64_t update = 0;                                ///< from 0
  std::shared_ptr<const std::vector<std::string>> names;  ///< of the parameters
  std::vector<std::uint64_t> hashes;                      ///< of their bits
};

/// Losses and parameter hashes of all ranks of a run, for comparing two runs.
struct StepRecords {
  std::vector<LossRecord> losses;     ///< by rank and step
  std::vector<UpdateRecord> updates;  ///< by rank and update
};

/// Collects the records of all ranks. Thread rule: any rank's thread.
class StepRecorder {
 public:
  explicit StepRecorder(int num_ranks) : losses_(num_ranks), updates_(num_ranks) {}
  void add_loss(int rank, double loss);
  void add_update(int rank, std::vector<std::string> names, const std::vector<ParameterState>& states);
  [[nodiscard]] StepRecords records() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::vector<LossRecord>> losses_ ACCEL_GUARDED_BY(mutex_);  // by rank
  std::vector<std::vector<UpdateRecord>> updates_ ACCEL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<std::string>> names_ ACCEL_GUARDED_BY(mutex_);  // of the last update
};

}  // namespace accel::sim
