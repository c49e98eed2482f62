#pragma once

#include <nlohmann/json.hpp>

#include "reference/state/rank_context.hpp"

/// Runs a mixture of experts, which the ranks of the world divide, and its gradients. properties/oracle/mixtures.py
/// does the same with transformers' Mixtral and documents the format of requests and answers.
///
/// Thread rule: the rank's thread. Collective.
namespace accel::testing {

/// `values` and `values_gradient` of the answer are those of the rank's tokens, everything else is complete.
nlohmann::json mixture_values(RankContext& rank, const nlohmann::json& request);

}  // namespace accel::testing
