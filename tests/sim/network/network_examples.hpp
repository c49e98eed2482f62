#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/network/network.hpp"
#include "tests/support/property.hpp"

/// Networks, groups and calls that the tests of the network share.
namespace accel::sim::testing {

inline constexpr std::int64_t kMiB = 1 << 20;

inline std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// A network with a separate link between any two ranks, so nothing contends, and without overhead.
inline NetworkSpec full_network(Library library = Library::kGloo) {
  return {.name = "full",
          .library = library,
          .reduce_seconds_per_byte = 1e-10,
          .lanes = 1,
          .topology = FullSpec{{2e-5, 1e9}}};
}

inline Network with_ranks(NetworkSpec spec, int num_ranks) {
  Network network(std::move(spec));
  network.set_ranks(num_ranks);
  return network;
}

/// Returns the end times of one collective of all ranks on an otherwise idle network.
inline std::vector<double> run_alone(const NetworkSpec& spec, const CollectiveCall& call,
                                     const std::vector<double>& ready) {
  const auto ranks = first_ranks(call.num_ranks);
  auto network = with_ranks(spec, call.num_ranks);
  return network.finish_times(0, {call.op, call.bytes, call.element_bytes, &ranks, call.root}, ready);
}

inline std::vector<double> run_together(const NetworkSpec& spec, const CollectiveCall& call) {
  return run_alone(spec, call, std::vector<double>(call.num_ranks, 0));
}

inline double latest(const std::vector<double>& times) { return *std::max_element(times.begin(), times.end()); }

inline double seconds_of(const NetworkSpec& spec, const CollectiveCall& call) {
  return latest(run_together(spec, call));
}

/// Returns all collectives except the two ends of a message.
inline std::vector<Collective> group_collectives() {
  std::vector<Collective> collectives;
  for (const auto& info : kCollectives) {
    if (info.algorithm != Algorithm::kMessage) collectives.push_back(info.collective);
  }
  return collectives;
}

inline LinkCosts any_link() { return {accel::testing::pick(0, 1000) * 1e-7, accel::testing::pick(1, 1000) * 1e8}; }

inline NetworkSpec any_network(TopologySpec topology) {
  using accel::testing::pick;
  return {.library = pick(0, 2) == 0 ? Library::kGloo : Library::kNccl,
          .overhead_seconds = pick(0, 10) * 1e-6,
          .reduce_seconds_per_byte = pick(0, 10) * 1e-10,
          .lanes = pick(1, 3),
          .tree_all_reduce_bytes_max = pick(0, 3) == 0 ? 1 << 20 : 0,
          .topology = std::move(topology)};
}

inline NetworkSpec any_contention_free_network() { return any_network(FullSpec{any_link()}); }

/// Returns a network whose topology holds at least 24 ranks.
inline NetworkSpec any_network() {
  switch (accel::testing::pick(0, 5)) {
    case 0: return any_contention_free_network();
    case 1: return any_network(TreeSpec{.tiers = {{.port = any_link()}}, .core_bytes_per_second = 1e9});
    case 2:
      return any_network(TreeSpec{.tiers = {{.port = any_link()},
                                            {.units = 4, .ports = accel::testing::pick(1, 4), .port = any_link()},
                                            {.units = 2, .port = any_link()}}});
    case 3: return any_network(TorusSpec{.shape = {4, 3, 2}, .link = any_link()});
    default: return any_network(TorusSpec{.link = any_link()});
  }
}

inline CollectiveCall any_call(int num_ranks_max = 24) {
  using accel::testing::pick;
  const auto collectives = group_collectives();
  CollectiveCall call{.op = collectives[pick<std::size_t>(0, collectives.size())],
                      .num_ranks = pick(1, num_ranks_max + 1)};
  call.element_bytes = 1 << pick(0, 4);
  call.bytes = call.element_bytes * std::int64_t{pick(0, 3) == 0 ? pick(0, 10) : pick(0, 2'000'000)};
  call.root = pick(0, call.num_ranks);
  return call;
}

inline std::vector<double> any_times(int count) {
  std::vector<double> times(count);
  for (auto& time : times) time = accel::testing::pick(0, 1000) * 1e-5;
  return times;
}

}  // namespace accel::sim::testing
