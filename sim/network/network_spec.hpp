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

/// What a network file says: links, how they are wired, what a collective costs on them, what computing costs.
///
///     const auto spec = read_network("configs/sim/networks/ethernet_100g.yaml");
///
/// Times in seconds, rates in bytes per second and direction. Thread rule: values. The keys are listed in README.md.
namespace accel::sim {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// A message that crosses a link pays its latency once and shares its rate with the others under way.
struct LinkCosts {
  double latency_seconds = 0;
  double bytes_per_second = kUnlimited;
};

/// A link of its own, both ways, between any two ranks.
struct FullSpec {
  LinkCosts link;
};

/// Switches above switches. A tier gathers `units` units of the tier below into one (the lowest: 1, a rank), which
/// reaches the switch above through `ports` ports; what stays below a switch never goes up. Rails: rank i of a unit
/// uses port i * ports / ranks of the unit.
struct Tier {
  int units = 1;
  int ports = 1;
  LinkCosts port;
};
struct TreeSpec {
  std::vector<Tier> tiers;
  double core_bytes_per_second = kUnlimited;  ///< what the topmost switch can carry of all messages together
  std::optional<std::int64_t> num_ranks_max;
};

/// Ranks on a grid with `shape[d]` of them along dimension d, wired to their neighbours and around; a message corrects
/// one dimension after the other, the short way. An empty shape is a ring of all ranks.
struct TorusSpec {
  std::vector<int> shape;
  LinkCosts link;
};

using TopologySpec = std::variant<FullSpec, TreeSpec, TorusSpec>;

/// The link from one rank to another: that link itself where the two are wired to each other, else a new one for their
/// messages.
struct LinkOverride {
  int from = 0, to = 0;
  LinkCosts costs;
};

/// What computing costs, in virtual time.
struct ComputeCosts {
  enum class Kind { kCpuTime, kTable };
  Kind kind = Kind::kCpuTime;
  double cpu_time_factor = 1;  ///< kCpuTime: virtual seconds per second that the rank's thread ran
  // kTable: an operator launches, then is bound by arithmetic or by memory, unless it has an entry of its own.
  double launch_seconds = 0;
  double flops_per_second = kUnlimited;
  double bytes_per_second = kUnlimited;
  std::map<std::string, double, std::less<>> op_seconds;

  /// Of one call of an operator, e.g. "aten::mm", under kTable.
  [[nodiscard]] double seconds_of(std::string_view op, double flops, double bytes) const;
};

/// How much longer than their links' costs the messages of a call of so many bytes take: caches, protocols and copies.
struct SizeFactor {
  std::int64_t bytes = 0;
  double factor = 1;
};

/// At `bytes`: straight lines between the points, on logarithms of both; constant beyond the first and the last; 1
/// without any.
double size_factor(const std::vector<SizeFactor>& factors, std::int64_t bytes);

struct NetworkSpec {
  std::string name;
  Library library = Library::kGloo;
  double overhead_seconds = 0;                 ///< of software, per call and rank, before its first message
  double reduce_seconds_per_byte = 0;          ///< gamma: of received bytes added to the rank's own
  int lanes = 2;                               ///< collectives of one group that run at once
  std::int64_t tree_all_reduce_bytes_max = 0;  ///< all-reduces up to this size run as a tree, larger ones as a ring
  std::vector<SizeFactor> size_factors;        ///< sorted by bytes
  TopologySpec topology;
  std::vector<LinkOverride> links;  ///< those of ranks that a run has not are passed over
  ComputeCosts compute;
};

/// Throws ConfigError with all problems, file and line.
NetworkSpec read_network(const std::string& file);

}  // namespace accel::sim
