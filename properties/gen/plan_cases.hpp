#pragma once

#include <rapidcheck.h>

#include <ostream>
#include <string>

#include "reference/data/samplers/shard_plan.hpp"
#include "sim/programs/experiments/plan_request.hpp"

/// Generated shard plans and requests of `sim-run plan`.
namespace accel::testing {

/// The options of a plan, and a rank that asks for its part.
struct ShardPlanCase {
  ShardPlanOptions options;
  int rank = 0;
};

std::string describe(const ShardPlanCase& one);
void showValue(const ShardPlanCase& one, std::ostream& out);

/// Returns a generator of plans for 1 to 8 ranks.
rc::Gen<ShardPlanCase> shard_plan_case();

std::string describe(const programs::PlanRequest& request);

/// Returns true if ranks read duplicates at the end of a complete epoch, because their shards are made even.
bool pads(const programs::PlanRequest& request);

/// Returns a generator of requests of all kinds for 1 to `max_ranks` ranks.
rc::Gen<programs::PlanRequest> plan_request(int max_ranks);

}  // namespace accel::testing

namespace accel::programs {

void showValue(const PlanRequest& request, std::ostream& out);

}  // namespace accel::programs
