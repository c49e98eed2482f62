#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/collectives/collective_plan.hpp"

/// The contents of a network file: links, topology, costs of collectives and of computing.
///
///     const auto spec = read_network("configs/sim/networks/ethernet_100g.yaml");
///
/// Times are in seconds, rates in bytes per second and direction. Thread rule: values. README.md lists the keys.
namespace accel::sim {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// A message that crosses a link pays its latency once and shares its rate with other messages in flight.
struct LinkCosts {
  double latency_seconds = 0;
  double bytes_per_second = kUnlimited;
};

/// A separate link in each direction between any two ranks.
struct FullSpec {
  LinkCosts link;
};

/// A tree of switches. A tier combines `units` units of the tier below (the lowest: 1, a rank) into one, which reaches
/// the switch above through `ports` ports; traffic below a switch does not go up. Rails: rank i of a unit uses port i *
/// ports / ranks of the unit.
struct Tier {
  int units = 1;
  int ports = 1;
  LinkCosts port;
};
struct TreeSpec {
  std::vector<Tier> tiers;
  double core_bytes_per_second = kUnlimited;  ///< capacity of the topmost switch for all messages together
  std::optional<std::int64_t> num_ranks_max;
};

/// Ranks on a grid with `shape[d]` ranks along dimension d, each wired to its neighbours, with wrap-around. A message
/// crosses one dimension after the other, the short way. An empty shape is a ring of all ranks.
struct TorusSpec {
  std::vector<int> shape;
  LinkCosts link;
};

using TopologySpec = std::variant<FullSpec, TreeSpec, TorusSpec>;

/// Overrides the link from one rank to another: the existing link if the two are neighbours, otherwise a new link for
/// their messages only.
struct LinkOverride {
  int from = 0, to = 0;
  LinkCosts costs;
};

/// The costs of computing, in virtual time.
struct ComputeCosts {
  enum class Kind { kCpuTime, kTable };
  Kind kind = Kind::kCpuTime;
  double cpu_time_factor = 1;  ///< kCpuTime: virtual seconds per second that the rank's thread ran
  // kTable: an operator is launched, then bound by arithmetic or by memory, unless it has its own entry.
  double launch_seconds = 0;
  double flops_per_second = kUnlimited;
  double bytes_per_second = kUnlimited;
  std::map<std::string, double, std::less<>> op_seconds;

  /// Returns the time of one call of an operator, e.g. "aten::mm", under kTable.
  [[nodiscard]] double seconds_of(std::string_view op, double flops, double bytes) const;
};

/// The factor by which messages of a call of this size exceed their links' costs: caches, protocols and copies.
struct SizeFactor {
  std::int64_t bytes = 0;
  double factor = 1;
};

/// Returns the factor at `bytes`: interpolated linearly on logarithms of both, constant beyond the first and the last
/// point, 1 without points.
double size_factor(const std::vector<SizeFactor>& factors, std::int64_t bytes);

struct NetworkSpec {
  std::string name;
  Library library = Library::kGloo;
  double overhead_seconds = 0;                 ///< software overhead per call and rank, before its first message
  double reduce_seconds_per_byte = 0;          ///< gamma: of adding received bytes to the rank's own
  int lanes = 2;                               ///< collectives of one group that run at once
  std::int64_t tree_all_reduce_bytes_max = 0;  ///< all-reduces up to this size run as a tree, larger ones as a ring
  std::vector<SizeFactor> size_factors;        ///< sorted by bytes
  TopologySpec topology;
  std::vector<LinkOverride> links;  ///< links of ranks beyond the run's are ignored
  ComputeCosts compute;
};

/// Throws ConfigError with all problems, file and line.
NetworkSpec read_network(const std::string& file);

}  // namespace accel::sim
