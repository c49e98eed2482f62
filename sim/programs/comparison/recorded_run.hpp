#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/programs/comparison/recording.hpp"

/// A recording with the elements of its tensors, for `sim-run prove`.
///
///     const RecordedRun run(folder, 8);
///     for (const auto& key : run.keys(0)) {
///       if (const auto* seen = run.find(3, key)) use(run.tensor(3, seen->tensors[0]));
///     }
///
/// Thread rule: values; the folder must exist as long as the object.
namespace accel::programs {

class RecordedRun {
 public:
  /// Throws Error if a file is damaged.
  RecordedRun(const std::string& folder, int num_ranks);

  [[nodiscard]] int num_ranks() const { return static_cast<int>(recording_.size()); }
  /// In the order of the rank's program.
  [[nodiscard]] const std::vector<ObservationKey>& keys(int rank) const { return keys_[rank]; }
  /// Null if the rank has no such observation.
  [[nodiscard]] const Observation* find(int rank, const ObservationKey& key) const;
  /// In double precision if it is a floating tensor.
  [[nodiscard]] at::Tensor tensor(int rank, const RecordedTensor& stored) const;

 private:
  Recording recording_;
  std::vector<std::vector<ObservationKey>> keys_;
  std::vector<std::map<ObservationKey, std::size_t>> places_;
  std::vector<std::string> values_;
};

}  // namespace accel::programs
