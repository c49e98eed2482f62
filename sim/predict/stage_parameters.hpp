#pragma once

#include "sim/predict/memory_account.hpp"

namespace accel::predict {

/// Parameters that one GPU holds of a stage, before they are sharded over data parallel ranks.
struct StageParameters {
  double dense = 0, experts = 0;
  double largest_unit = 0;  ///< of a layer, or of embedding and head

  [[nodiscard]] double sum() const { return dense + experts; }
};

[[nodiscard]] StageParameters stage_parameters(const TrainingRun& run, const StageShare& stage);
/// Those of one layer, the mean of all.
[[nodiscard]] StageParameters layer_parameters(const TrainingRun& run);

}  // namespace accel::predict
