#pragma once

#include <memory>

#include "reference/elastic/elastic_ranks.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/replica_comparison.hpp"

namespace accel::sim {

/// Joins the simulated ranks in a training that goes on without those whose processes end: RankContext::join_elastic.
/// They need no protocol, since all know at once who has ended. Collective.
std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, const Member& member,
                                                    std::shared_ptr<ReplicaComparison> comparison, int min_ranks);

}  // namespace accel::sim
