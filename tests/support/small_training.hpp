#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "reference/state/rank_context.hpp"

/// A small data-parallel training, and what is left of it when a rank's program ends, well or not.
///
///     Progress progress;
///     train(rank, progress, {.before_update = [](RankContext& rank, int step) {
///                             if (step == 5) throw std::runtime_error("no ink");
///                           }});
///
/// Thread rule: a rank's thread; each rank has a Progress of its own.
namespace accel::testing {

inline constexpr int kTrainingSteps = 12;

/// What a rank does beside its training; may throw.
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
