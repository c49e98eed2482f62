#pragma once

#include <vector>

#include "sim/predict/layer_costs.hpp"
#include "sim/predict/pipeline_time.hpp"

/// Bytes per GPU, of the fullest one.
///
/// Thread rule: pure functions.
namespace accel::predict {

struct StageShare {
  double layers = 0;
  bool has_embedding = false, has_head = false;
};

struct MemoryAccount {
  double parameters = 0, gradients = 0, optimizer = 0;  ///< of the fullest rank
  double activations = 0;                               ///< with logits
  double reserve = 0;                                   ///< context, communication buffers, fragments

  [[nodiscard]] double sum() const { return parameters + gradients + optimizer + activations + reserve; }
};

/// `stages` in the order of the model.
[[nodiscard]] MemoryAccount memory_account(const RunContext& context, const std::vector<StageShare>& stages,
                                           const Pipeline& pipeline);

}  // namespace accel::predict
