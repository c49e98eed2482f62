#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/collectives/collective_plan.hpp"

/// When each rank has done its part of a collective.
///
/// A message starts once both its ranks have ended their round before (Gloo's receiver tells the sender that it is
/// ready), takes its latency and its bytes at the rate of its share, and, if it is reduced, the receiver's time to add
/// it. Thread rule: pure. Source of the rendezvous: gloo/transport/tcp/pair.cc.
namespace accel::sim {

/// Of one pair of ranks while a round's messages are under way together.
struct PairCosts {
  double latency_seconds = 0;
  double seconds_per_byte = 0;

  friend bool operator==(const PairCosts&, const PairCosts&) = default;
};

/// With two pieces under way at once, latency is hidden behind the bytes of the other piece, or the other way round.
double message_seconds(const Message& message, const PairCosts& costs);

struct TimingOptions {
  double reduce_seconds_per_byte = 0;
  double time_factor = 1;  ///< of every message and of adding it
  /// Rings of at least so many ranks that are ready together, over pairs that all cost the same, take the time of their
  /// slowest message in every round.
  int closed_form_ranks_min = 4096;
};

/// Costs of the messages of one round, in their order; `now`: when its first message starts.
using CostsOfRound = std::function<std::span<const PairCosts>(const Stage& stage, int round,
                                                              const std::vector<Message>& messages, double now)>;

/// `clocks`: when each rank begins; returns when each has ended.
std::vector<double> run_plan(const CollectivePlan& plan, std::vector<double> clocks, const TimingOptions& options,
                             const CostsOfRound& costs_of);

}  // namespace accel::sim
