#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/collectives/collective_plan.hpp"

/// Computes when each rank has finished its part of a collective.
///
/// A message starts when both its ranks have finished their previous round (Gloo's receiver tells the sender that it is
/// ready). It takes its latency, plus its bytes at its share of the rate, plus, if it is reduced, the receiver's time
/// to add it. Thread rule: pure. Source of the rendezvous: gloo/transport/tcp/pair.cc.
namespace accel::sim {

/// The costs of one pair of ranks while all messages of a round are in flight.
struct PairCosts {
  double latency_seconds = 0;
  double seconds_per_byte = 0;

  friend bool operator==(const PairCosts&, const PairCosts&) = default;
};

/// Returns the time of a message. With two pieces in flight at once, the latency of one piece is hidden behind the
/// transfer of the other, or the other way round.
double message_seconds(const Message& message, const PairCosts& costs);

struct TimingOptions {
  double reduce_seconds_per_byte = 0;
  double time_factor = 1;  ///< multiplies the time of every message and of adding it
  /// Rings of at least this many ranks, if all are ready together and all pairs cost the same, take the time of their
  /// slowest message in every round.
  int closed_form_ranks_min = 4096;
};

/// Returns the costs of the messages of one round, in their order; `now`: when its first message starts.
using CostsOfRound = std::function<std::span<const PairCosts>(const Stage& stage, int round,
                                                              const std::vector<Message>& messages, double now)>;

/// Returns when each rank has ended. `clocks`: when each rank begins.
std::vector<double> run_plan(const CollectivePlan& plan, std::vector<double> clocks, const TimingOptions& options,
                             const CostsOfRound& costs_of);

}  // namespace accel::sim
