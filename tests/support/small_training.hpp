#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Runs a small data-parallel training, and keeps its result when a rank's program ends, successfully or not.
///
/// Example: `Progress progress; train(rank, progress, {.before_update = [](RankContext& rank, int step) { if (step
/// == 5) throw std::runtime_error("no ink"); }});`
///
/// Thread rule: a rank's thread; each rank has its own Progress.
namespace accel::testing {

inline constexpr int kTrainingSteps = 12;

/// Actions of a rank at places of its training. They may throw.
struct TrainingPlaces {
  using Place = std::function<void(RankContext& rank, int step)>;
  Place before_step = nullptr;
  Place in_hook = nullptr;  ///< of a gradient, before it is summed
  Place before_update = nullptr;
  Place after_update = nullptr;
};

struct Progress {
  int updates = 0;
  std::vector<at::Tensor> parameters;  ///< the model's own
  [[nodiscard]] std::vector<std::byte> bytes() const;
};

void train(RankContext& rank, Progress& progress, const TrainingPlaces& places = {});

}  // namespace accel::testing
