#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "backends/gloo/gloo_backend.hpp"
#include "reference/elastic/elastic_ranks.hpp"
#include "reference/state/rank_context.hpp"

namespace accel::gloo {

/// Joins the ranks of the world in a training that goes on without those it loses: RankContext::join_elastic over Gloo.
/// Each serves a store, where the members of a view meet of which it is the first. `store`: of the world, whose ranks
/// have the numbers `options.members` in the job. Collective. Throws CommError if the ranks do not meet.
std::unique_ptr<elastic::ElasticRanks> join_elastic(RankContext& context, c10::intrusive_ptr<c10d::Store> store,
                                                    const GlooOptions& options, int min_ranks);

}  // namespace accel::gloo
