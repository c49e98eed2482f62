#pragma once

#include <optional>

#include "sim/programs/comparison/recorded_run.hpp"
#include "sim/programs/layouts/disagreement.hpp"

/// Compares a run on a mesh with a run of the same program and the same samples on one rank, tensor by tensor.
///
///     const auto disagreement = first_disagreement(RecordedRun(one, 1), RecordedRun(mesh, 8), {.tp_size = 8});
///     if (disagreement) std::cout << describe(*disagreement) << '\n';
///
/// Thread rule: pure functions.
namespace accel::programs {

/// Returns the first tensor, in the order in which one rank computes them, that a rank of the mesh holds with other
/// values than its placement requires: the initial parameters; in each step inputs, outputs, the loss, input gradients,
/// the gradient of each parameter and the updated parameters.
///
/// Both runs read the same samples in a step; losses are means over a rank's samples or tokens, so input gradients on
/// the mesh are larger by the number of ranks with other tokens. The tolerance follows the dtype: 1e-9 in float64, 1e-4
/// in float32, 0.05 below.
std::optional<Disagreement> first_disagreement(const RecordedRun& one, const RecordedRun& mesh,
                                               const ParallelismConfig& layout);

}  // namespace accel::programs
