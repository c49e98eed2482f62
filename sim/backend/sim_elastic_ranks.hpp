#pragma once

#include <memory>

#include "reference/elastic/elastic_ranks.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/engine/faults.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/newcomers.hpp"
#include "sim/ranks/replica_comparison.hpp"

namespace accel::sim {

/// What the ranks of a run share.
struct SharedByRanks {
  std::shared_ptr<ReplicaComparison> comparison;
  std::shared_ptr<Newcomers> newcomers;
  std::shared_ptr<FaultModel> faults = nullptr;  ///< null: none
  int num_elastic_runs = 0;                      ///< of the rank so far
};

/// Joins the simulated ranks in a training that goes on without those whose processes end: RankContext::join_elastic.
/// They need no protocol, since all know at once who has ended, or is started anew. Collective.
std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, const Member& member, SharedByRanks shared,
                                                    int min_ranks);

}  // namespace accel::sim
