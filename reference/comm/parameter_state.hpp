#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace at {
class Tensor;
}

namespace accel {

/// What a rank has of a parameter after an optimizer step: what replicas must have in common, and what explains a
/// difference.
///
///     const auto mine = state_of(net->weight);
///     if (mine.hash != yours.hash) ...   // the replicas differ; why, likely_cause says
///
/// Thread rule: the thread that owns the parameter.
struct ParameterState {
  enum class Gradient { kFrozen, kMissing, kPresent };  ///< kFrozen: requires_grad is false

  std::uint64_t hash = 0;  ///< of its bits, as fingerprint
  c10::ScalarType dtype = c10::ScalarType::Float;
  Gradient gradient = Gradient::kMissing;
  std::uint64_t gradient_hash = 0;  ///< as sample_fingerprint; 0: not known

  bool operator==(const ParameterState&) const = default;
};

ParameterState state_of(const at::Tensor& parameter);

}  // namespace accel
