#pragma once

#include <unordered_map>
#include <vector>

#include "sim/network/network_spec.hpp"

/// The links of a network on a given number of ranks, and the routes of messages over them.
///
///     Topology topology(spec.topology, spec.links, /*num_ranks=*/64);
///     const double latency = topology.latency_seconds(topology.route(0, 9));
///
/// Nodes are filled in order: rank r is the r-th place. Thread rule: one thread at a time.
namespace accel::sim {

using Route = std::vector<int>;  ///< link numbers in the order of crossing

class Topology {
 public:
  /// Throws ConfigError if the topology cannot hold that many ranks.
  Topology(TopologySpec spec, const std::vector<LinkOverride>& overrides, int num_ranks);

  /// Returns the route from one rank to a different one.
  [[nodiscard]] const Route& route(int from, int to);
  [[nodiscard]] const LinkCosts& link(int number) const { return links_[number]; }
  [[nodiscard]] double latency_seconds(const Route& route) const;
  [[nodiscard]] int num_links() const { return static_cast<int>(links_.size()); }

  /// Makes messages from one rank to another take `factor` times as long. If the two share links with other ranks, only
  /// their own messages are slowed down.
  void scale(int from, int to, double factor);

 private:
  struct TierLinks {
    int first = 0;  // number of the tier's first link
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
  int core_ = -1;                                   // link of a tree's core; -1: the core is unlimited
  std::unordered_map<std::int64_t, Route> routes_;  // cache of requested routes, by pair
};

}  // namespace accel::sim
