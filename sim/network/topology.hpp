#pragma once

#include <unordered_map>
#include <vector>

#include "sim/network/network_spec.hpp"

/// The links of a network on a given number of ranks, and the way of a message over them.
///
///     Topology topology(spec.topology, spec.links, /*num_ranks=*/64);
///     const double latency = topology.latency_seconds(topology.route(0, 9));
///
/// Nodes are filled in order: rank r is the r-th place. Thread rule: one thread at a time.
namespace accel::sim {

using Route = std::vector<int>;  ///< link numbers, in the order in which they are crossed

class Topology {
 public:
  /// Throws ConfigError if the topology cannot hold that many ranks.
  Topology(TopologySpec spec, const std::vector<LinkOverride>& overrides, int num_ranks);

  /// The way from one rank to another one.
  [[nodiscard]] const Route& route(int from, int to);
  [[nodiscard]] const LinkCosts& link(int number) const { return links_[number]; }
  [[nodiscard]] double latency_seconds(const Route& route) const;
  [[nodiscard]] int num_links() const { return static_cast<int>(links_.size()); }

  /// Messages from one rank to another take `factor` times as long. Where the two share no link of their own, the
  /// others on the links of their route are not slowed.
  void scale(int from, int to, double factor);

 private:
  struct TierLinks {
    int first = 0;  // number of its first link
    int ranks_per_unit = 1;
  };

  int add_link(const LinkCosts& costs);
  void add_links(const FullSpec& spec);
  void add_links(const TreeSpec& spec);
  void add_links(const TorusSpec& spec);
  void override_link(const LinkOverride& change);
  Route find_route(const FullSpec& spec, int from, int to);
  Route find_route(const TreeSpec& spec, int from, int to);
  Route find_route(const TorusSpec& spec, int from, int to);

  TopologySpec spec_;
  int num_ranks_;
  std::vector<LinkCosts> links_;
  std::vector<TierLinks> tiers_;                    // of a tree
  int core_ = -1;                                   // of a tree whose core has a limit
  std::unordered_map<std::int64_t, Route> routes_;  // those asked for, by pair
};

}  // namespace accel::sim
