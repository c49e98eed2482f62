#pragma once

#include <vector>

#include "reference/data/samplers/shard_plan.hpp"
#include "sim/programs/experiments/plan_request.hpp"

/// Computes the answers of `sim-run plan`.
namespace accel::programs {

/// Up to this many ranks `answer_plan` runs the real loaders.
constexpr int kMaxPlanLoaders = 256;

/// Answers from the real loaders on simulated ranks for up to kMaxPlanLoaders ranks, and from the shard plan for more.
/// Throws ArgumentError where Accelerate raises ValueError.
std::vector<PlanEpoch> answer_plan(const PlanRequest& request);

/// Answers by running prepared loaders on simulated ranks.
std::vector<PlanEpoch> plan_by_loaders(const PlanRequest& request);

/// Answers from the shard plan alone: an order of samples, and how it is divided. No rank runs.
std::vector<PlanEpoch> plan_by_shards(const PlanRequest& request);

/// Returns how an epoch's order is divided over the request's ranks if all of them read. A dispatched step has the same
/// size.
ShardPlan shard_plan_of(const PlanRequest& request);

}  // namespace accel::programs
