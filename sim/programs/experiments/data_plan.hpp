#pragma once

#include <vector>

#include "reference/data/samplers/shard_plan.hpp"
#include "sim/programs/experiments/plan_request.hpp"

/// The answers of `sim-run plan`.
namespace accel::programs {

/// Up to this many ranks `answer_plan` runs the real loaders.
constexpr int kMaxPlanLoaders = 256;

/// Up to kMaxPlanLoaders ranks the real loaders' answer, on simulated ranks; beyond, the shard plan's.
/// Throws ArgumentError where Accelerate raises ValueError.
std::vector<PlanEpoch> answer_plan(const PlanRequest& request);

/// The answer of prepared loaders on simulated ranks.
std::vector<PlanEpoch> plan_by_loaders(const PlanRequest& request);

/// The answer of the shard plan alone: an order of samples, and how it is cut. No rank runs.
std::vector<PlanEpoch> plan_by_shards(const PlanRequest& request);

/// How an epoch's order is cut over the request's ranks, where they all read; a dispatched step has the same size.
ShardPlan shard_plan_of(const PlanRequest& request);

}  // namespace accel::programs
