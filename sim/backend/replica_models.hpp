#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/comm/parameter_state.hpp"
#include "reference/state/step_observer.hpp"
#include "sim/ranks/replica_comparison.hpp"

/// The models of a rank that is a thread, as ReplicaComparison expects them. Thread rule: the rank's thread.
namespace accel::sim {

using ReplicaModels = std::vector<std::shared_ptr<const Replicas>>;  // each with parameters

/// Those of a rank's models that are compared after an update: all that still exist, except for those that keep their
/// gradients local. Forgets models that are gone.
ReplicaModels compared_models(std::vector<std::weak_ptr<const Replicas>>& models);

/// Return each parameter's state, its name, and the part that it is, in order.
std::vector<ParameterState> states_of(const ReplicaModels& models);
std::vector<std::string> names_of(const ReplicaModels& models);
std::vector<int> parts_of(const ReplicaModels& models);
/// See Replicas::stage_rank; 0 without a pipeline.
int stage_rank_of(const ReplicaModels& models);
ParameterDescription describe_parameter(const ReplicaModels& models, std::size_t place);

}  // namespace accel::sim
