#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/collectives/collective_plan.hpp"
#include "sim/network/network_spec.hpp"
#include "sim/network/plan_timing.hpp"
#include "sim/network/topology.hpp"

/// Computes the virtual time of collectives on a described network.
///
///     auto network = Network::load("configs/sim/networks/ethernet_100g.yaml");
///     network.set_ranks(64);
///     const Transfer transfer{.op = Collective::kAllReduce, .bytes = 4 << 20, .ranks = &world_ranks};
///     const auto ends = network.finish_times(/*group=*/0, transfer, ready);  // by group rank
///
/// Stateful over one run: a group runs as many collectives at once as it has lanes, and a collective shares links with
/// earlier requested ones of other groups and lanes. The same calls in the same order give the same times. Thread rule:
/// one thread at a time.
namespace accel::sim {

/// Max-min fair rates of flows that share links: no flow can get more without taking from a flow that has no more.
///
///     Flows flows;
///     flows.add({0, 1});  // crosses the links 0 and 1
///     flows.add({1});
///     max_min_rates(flows, /*capacities=*/{1.0, 10.0});  // 1.0 and 9.0
///
/// Computed by progressive filling: the link with the smallest share per open flow fixes its flows, until all
/// are fixed. A flow that crosses only unlimited links has an unlimited rate. Thread rule: pure.
struct Flows {
  std::vector<int> begins = {0};  ///< start of each flow in `links`, and the end of the last
  std::vector<int> links;

  void add(std::span<const int> route);
  [[nodiscard]] int size() const { return static_cast<int>(begins.size()) - 1; }
  [[nodiscard]] std::span<const int> route(int flow) const {
    return std::span(links).subspan(begins[flow], begins[flow + 1] - begins[flow]);
  }
};

/// `capacities` by link number.
std::vector<double> max_min_rates(const Flows& flows, std::span<const double> capacities);

struct Transfer {
  Collective op{};         ///< kSend and kRecv: ranks = {sender, receiver}
  std::int64_t bytes = 0;  ///< of this rank's input; for scatter: of one rank's part
  int element_bytes = 4;
  const std::vector<int>* ranks = nullptr;  ///< world ranks, by group rank
  int root = -1;                            ///< group rank; -1: none
};

class Network {
 public:
  explicit Network(NetworkSpec spec);
  /// Throws ConfigError with all problems, file and line.
  static Network load(const std::string& file);

  /// Starts a run on this many ranks and forgets pending collectives. Throws ConfigError if the topology cannot hold
  /// them.
  void set_ranks(int num_ranks);

  /// Returns when each rank has finished its part, in seconds, by group rank. `ready`: when each rank called. A group
  /// number always stands for the same ranks. Throws ArgumentError for ranks, a root or times that do not fit.
  std::vector<double> finish_times(std::uint64_t group, const Transfer& transfer, std::span<const double> ready);

  /// Makes later messages from one rank to the other take `factor` times as long.
  void scale_link(int from, int to, double factor);

  [[nodiscard]] const NetworkSpec& spec() const { return spec_; }
  [[nodiscard]] const ComputeCosts& compute() const { return spec_.compute; }

 private:
  struct Pattern {
    std::vector<PairCosts> costs;
    std::vector<int> links;  // sorted
  };
  using PatternKey = std::tuple<Pairs, int /*root*/, int /*round*/>;
  struct Usage {  // the links that a collective uses, and when
    double begin = 0, end = 0;
    std::vector<int> links;
  };
  struct Group {
    std::vector<int> ranks;
    std::vector<double> lane_free;           // [rank][lane]
    std::vector<Usage> under_way;            // at most one per lane
    std::map<PatternKey, Pattern> patterns;  // costs without other traffic on the links
  };
  class Costs;

  Group& group_of(std::uint64_t number, const Transfer& transfer, std::span<const double> ready);
  std::vector<double> starts(const Group& group, Collective op, std::span<const double> ready) const;
  void occupy_lanes(Group& group, std::span<const double> ends) const;
  [[nodiscard]] std::vector<double> capacities_shared_with(const std::vector<const Usage*>& others) const;
  Pattern solve(const Group& group, const std::vector<Message>& messages, const std::vector<const Usage*>& others);

  NetworkSpec spec_;
  std::unique_ptr<Topology> topology_;
  int num_ranks_ = 0;
  std::map<std::uint64_t, Group> groups_;
};

}  // namespace accel::sim
