#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "reference/state/rank_context.hpp"
#include "sim/network/network.hpp"

/// What a program costs on each of many ranks, from a run of one of them.
///
///     auto network = sim::Network::load("configs/sim/networks/infiniband_400g.yaml");
///     const auto costs = rank_costs({.num_ranks = 64}, network, [](RankContext& rank) { train(rank); });
///
/// Thread rule: one thread at a time per network.
namespace accel::programs {

struct RankCosts {
  double step_seconds = 0, compute_seconds = 0;  ///< of an optimizer step
  std::int64_t memory_bytes = 0;                 ///< of tensors that exist at a time, at most
};

struct CostsRequest {
  int num_ranks = 1;
  bool needs_divided_layers = false;  ///< under tp: a model without them is refused
};

inline constexpr int kPricedUpdates = 3;  ///< optimizer state exists and DDP's buckets are final after the first

/// Runs rank 0 of the program for kPricedUpdates optimizer steps, with fake peers (sim/backend/first_rank.hpp), and
/// prices the calls of the last one on the network for all ranks. Throws ArgumentError for a program of fewer steps,
/// and what the program throws.
RankCosts rank_costs(const CostsRequest& request, sim::Network& network,
                     const std::function<void(RankContext&)>& program);

std::string to_json(const RankCosts& costs);
/// Throws ConfigError if the text is none of to_json.
RankCosts rank_costs_of_json(const std::string& text);

}  // namespace accel::programs
