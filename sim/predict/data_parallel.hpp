#pragma once

#include "sim/predict/layer_costs.hpp"
#include "sim/predict/stage_parameters.hpp"

namespace accel::predict {

/// What one rank computes per micro-batch: it can cover communication.
struct RankWork {
  double layers = 0;
  double forward = 0, backward = 0;              ///< seconds of all its layers
  double layer_forward = 0, layer_backward = 0;  ///< of one
};

/// Seconds per step that the sums of gradients and the gathers of parameters add to the computation.
[[nodiscard]] double data_parallel_seconds(const RunContext& context, const StageParameters& parameters,
                                           const RankWork& work);
/// Seconds of the optimizer's step and of the norm of the gradients.
[[nodiscard]] double optimizer_seconds(const RunContext& context, const StageParameters& parameters);

}  // namespace accel::predict
