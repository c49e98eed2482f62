#pragma once

#include <functional>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"
#include "reference/tree/value.hpp"

/// State of the objects that a program has registered for checkpointing. Modules and optimizers may have parameters
/// that ranks divide; files contain complete tensors, which do not depend on the layout.
///
///     const auto states = checkpoint::registered_states(state, context);   // every rank
///     if (is_main) files.push_back({file_of_custom(0), states[0]()});
///
/// Thread rule: the rank's thread.
namespace accel::checkpoint {

/// Throws StateError, equally on every rank, if a registered module is a sharded model, of which ranks hold shards.
void check_registered(const TrainingState& state);

/// Functions that return the states of the registered objects, for the ranks that write them. Divided tensors are
/// gathered here, those of other objects are read when the functions are called. Collective if any object is divided.
[[nodiscard]] std::vector<std::function<Value()>> registered_states(const TrainingState& state, RankContext& context);

/// Loads a complete state into object `index`. Throws CheckpointError if it does not fit.
void load_registered(const TrainingState& state, std::size_t index, const Value& complete);

}  // namespace accel::checkpoint
