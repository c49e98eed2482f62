#pragma once

#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"
#include "reference/tree/value.hpp"

/// What a rank that joins a training takes over from one that has the state: models, optimizers, the loss scale,
/// registered objects, generators and the epochs of loaders. Every rank holds them complete.
///
///     const auto state = transferred_state(training, context);   // of the one, sent as a tree to the other
///     take_over(training, context, state);
///
/// Thread rule: the rank's thread.
namespace accel {

/// Tensors are the training's own.
[[nodiscard]] Value transferred_state(TrainingState& training, const RankContext& context);

/// Throws ConfigError that names the object if this rank has prepared or registered others; it may have taken over a
/// part then.
void take_over(TrainingState& training, RankContext& context, const Value& state);

}  // namespace accel
