#include "sim/predict/collective_times.hpp"

#include <algorithm>
#include <cmath>

namespace accel::predict {
namespace {

// Of nodes whose network is not described: 8 cards of 200 Gb/s beside Ampere, of 400 Gb/s beside later GPUs.
double usual_network(const Gpu& gpu, double gpus_per_node) {
  return (gpu.generation == "ampere" ? 25e9 : 50e9) * gpus_per_node;
}

}  // namespace

CollectiveTimes::CollectiveTimes(const SystemShape& system, const Gpu& gpu, const Hardware& hardware)
    : gpus_per_node_(system.gpus_per_node),
      domain_(system.gpus_per_nvlink_domain > 0 ? system.gpus_per_nvlink_domain
                                                : std::max(system.gpus_per_node, gpu.gpus_per_nvlink_domain)),
      node_rate_(system.network_bytes_per_second_per_node.value_or(usual_network(gpu, system.gpus_per_node)) *
                 hardware.efficiency.network),
      bus_rate_(gpu.nvlink_bus_bytes_per_second),
      nodes_per_switch_(system.nodes_per_switch),
      oversubscription_(std::max(1.0, system.oversubscription)),
      assumes_network_(!system.network_bytes_per_second_per_node),
      all_to_all_share_(hardware.efficiency.all_to_all_nvlink),
      latencies_(hardware.latencies) {}

double CollectiveTimes::members_per_domain(const RankGroup& group) const {
  return std::max(1.0, std::min(group.size, std::floor(domain_ / group.stride)));
}

double CollectiveTimes::num_domains(const RankGroup& group) const {
  return std::ceil(group.size / members_per_domain(group));
}

double CollectiveTimes::card_share(double span) const {
  const double share = node_rate_ / gpus_per_node_;
  const bool leaves_switch = nodes_per_switch_ > 0 && span > nodes_per_switch_ * gpus_per_node_;
  return leaves_switch ? share / oversubscription_ : share;
}

// As many rings as the group has members in a node: each leaves through the card of another member.
double CollectiveTimes::ring_rate(const RankGroup& group) const {
  if (num_domains(group) <= 1) return bus_rate_;
  return std::min(bus_rate_, card_share(group.stride * group.size) * members_per_domain(group));
}

double CollectiveTimes::ring_latency(const RankGroup& group) const {
  const double domains = num_domains(group);
  const double across = domains > 1 ? domains : 0;
  return latencies_.ring_base + latencies_.ring_hop_network * across +
         latencies_.ring_hop_nvlink * (group.size - across);
}

double CollectiveTimes::gather(double bytes, const RankGroup& group) const {
  return gather_in_calls(bytes, group, 1, false);
}

double CollectiveTimes::gather_in_calls(double bytes, const RankGroup& group, double calls,
                                        bool through_one_card) const {
  if (group.size <= 1 || bytes <= 0) return 0;
  double rate = ring_rate(group);
  if (through_one_card && num_domains(group) > 1) rate = std::min(rate, card_share(group.stride * group.size));
  return bytes * (group.size - 1) / group.size / rate + calls * ring_latency(group);
}

double CollectiveTimes::all_reduce(double bytes, const RankGroup& group) const {
  if (group.size <= 1 || bytes <= 0) return 0;
  const double domains = num_domains(group);
  double latency = latencies_.tree_base + latencies_.tree_hop_nvlink * members_per_domain(group);
  if (domains > 1) latency += latencies_.tree_network + latencies_.tree_doubling_of_nodes * std::log2(domains);
  return 2 * bytes * (group.size - 1) / group.size / ring_rate(group) + latency;
}

double CollectiveTimes::all_to_all(const TokenExchange& tokens, const RankGroup& group) const {
  if (group.size <= 1) return 0;
  const double near = members_per_domain(group);
  const double inside = tokens.bytes * (near - 1) / group.size / (bus_rate_ * all_to_all_share_);
  double across = tokens.bytes * (group.size - near) / group.size;
  if (tokens.sends_once_per_node) {
    // Of independent copies to equally likely domains, as many are different.
    const double domains = num_domains(group);
    double different = domains * (1 - std::pow(1 - 1 / domains, tokens.copies));
    if (tokens.most_nodes > 0) different = std::min(different, tokens.most_nodes);
    across = tokens.bytes * different / tokens.copies * (domains - 1) / domains;
  }
  return std::max(inside, across / card_share(group.stride * group.size)) + latencies_.ring_base;
}

double CollectiveTimes::ring_of_messages(double bytes, const RankGroup& group) const {
  const double steps = group.size - 1;
  if (num_domains(group) <= 1) return steps * (bytes / bus_rate_ + latencies_.message_nvlink);
  return steps * (bytes / card_share(group.stride * group.size) + latencies_.message_network);
}

double CollectiveTimes::message(double bytes, double stride) const {
  if (stride < domain_) return bytes / bus_rate_ + latencies_.message_nvlink;
  return bytes / card_share(2 * stride) + latencies_.message_network;
}

}  // namespace accel::predict
