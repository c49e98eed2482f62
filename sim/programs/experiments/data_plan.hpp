#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reference/data/samplers/shard_plan.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/experiments/plan_request.hpp"

/// Computes the answers of `sim-run plan`.
namespace accel::programs {

/// Up to this many ranks `answer_plan` runs the real loaders.
constexpr int kMaxPlanLoaders = 256;

/// Answers from the real loaders on simulated ranks for up to kMaxPlanLoaders ranks, and from the shard plan for more.
/// Throws ArgumentError where Accelerate raises ValueError.
std::vector<PlanEpoch> answer_plan(const PlanRequest& request);

/// Answers on the ranks of a job, simulated or real. Collective; every rank returns the same. Throws ArgumentError if
/// the job does not have the request's number of ranks.
std::vector<PlanEpoch> answer_plan(RankContext& rank, const PlanRequest& request);

/// Answers a request in JSON by `plan`: {"epochs": ...}, or {"error": class, "message": why} with the name of the
/// Python class that Accelerate raises.
nlohmann::ordered_json answer_plan_line(const std::string& line,
                                        const std::function<std::vector<PlanEpoch>(const PlanRequest&)>& plan);

/// Answers by running prepared loaders on simulated ranks, without duplicates and dropped samples.
std::vector<PlanEpoch> plan_by_loaders(const PlanRequest& request);
/// The same on the ranks of a job.
std::vector<PlanEpoch> plan_by_loaders(RankContext& rank, const PlanRequest& request);

/// Answers from the shard plan alone: an order of samples, and how it is divided. No rank runs.
std::vector<PlanEpoch> plan_by_shards(const PlanRequest& request);

/// Returns how an epoch's order is divided over the request's ranks if all of them read. A dispatched step has the same
/// size.
ShardPlan shard_plan_of(const PlanRequest& request);

}  // namespace accel::programs
