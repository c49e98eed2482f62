// Collectives by formula take the time that the simulator's network gives the same plans.
#include "sim/predict/collective_times.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/network/network.hpp"
#include "tests/support/property.hpp"

namespace accel::predict::collective_times_test {
namespace {

using accel::testing::expect_property;
using accel::testing::pick;
using accel::testing::pick_from;

// A GPU whose NVLink has the rate, and no other costs.
CollectiveTimes in_one_domain(double rate, double latency) {
  Hardware hardware;
  hardware.latencies.message_nvlink = latency;
  return CollectiveTimes({.gpus_per_node = 64}, {.nvlink_bus_bytes_per_second = rate}, hardware);
}

double simulated(Collective op, std::int64_t bytes, int ranks, double rate, double latency) {
  sim::Network network({.name = "full",
                        .library = sim::Library::kNccl,
                        .topology = sim::FullSpec{{.latency_seconds = latency, .bytes_per_second = rate}}});
  network.set_ranks(ranks);
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto ends = network.finish_times(0, {.op = op, .bytes = bytes, .ranks = &everyone}, std::vector<double>(ranks));
  return *std::max_element(ends.begin(), ends.end());
}

TEST(CollectiveTimesTest, RingsInOneDomainTakeTheTimeOfTheSimulatorsNetwork) {
  expect_property(100, [] {
    const int ranks = pick(2, 17);
    const double rate = 1e9 * pick(10, 500);
    const std::int64_t part = std::int64_t{1} << pick(20, 26);  // bytes of one rank's part
    const auto times = in_one_domain(rate, 0);
    const RankGroup group{.stride = 1, .size = static_cast<double>(ranks)};
    const double whole = static_cast<double>(part) * ranks;
    const auto near = [](double formula, double network) { return std::abs(formula / network - 1) < 0.05; };
    RC_ASSERT(near(times.gather(whole, group), simulated(Collective::kAllGatherIntoTensor, part, ranks, rate, 0)));
    RC_ASSERT(
        near(times.gather(whole, group), simulated(Collective::kReduceScatterTensor, part * ranks, ranks, rate, 0)));
    RC_ASSERT(near(times.all_reduce(whole, group), simulated(Collective::kAllReduce, part * ranks, ranks, rate, 0)));
  });
}

TEST(CollectiveTimesTest, MessagesTakeTheTimeOfTheSimulatorsNetwork) {
  expect_property(100, [] {
    const double rate = 1e9 * pick(10, 500), latency = 1e-6 * pick(0, 50);
    const std::int64_t bytes = std::int64_t{1} << pick(10, 28);
    const double network = simulated(Collective::kSend, bytes, 2, rate, latency);
    RC_ASSERT(std::abs(in_one_domain(rate, latency).message(static_cast<double>(bytes), 1) / network - 1) < 0.05);
  });
}

// Four nodes of eight: a ring per card. With one rank per node a group has one card.
TEST(CollectiveTimesTest, RingsBetweenNodesUseTheCardsOfTheirMembers) {
  Hardware hardware;
  const CollectiveTimes times({.gpus_per_node = 8, .network_bytes_per_second_per_node = 400e9},
                              {.nvlink_bus_bytes_per_second = 1e15}, hardware);
  EXPECT_DOUBLE_EQ(times.gather(32e9, {.stride = 1, .size = 32}), 31e9 / 400e9);
  EXPECT_DOUBLE_EQ(times.gather(32e9, {.stride = 2, .size = 16}), 30e9 / 200e9);
  EXPECT_DOUBLE_EQ(times.gather(32e9, {.stride = 8, .size = 4}), 24e9 / 50e9);
  EXPECT_DOUBLE_EQ(times.message(1e9, 8), 1e9 / 50e9);
}

TEST(CollectiveTimesTest, ASystemMayHaveSmallerDomainsThanItsGpu) {
  Hardware hardware;
  const Gpu gpu{.nvlink_bus_bytes_per_second = 1e15, .gpus_per_nvlink_domain = 72};
  const RankGroup group{.stride = 1, .size = 16};
  EXPECT_TRUE(CollectiveTimes({.gpus_per_node = 4}, gpu, hardware).is_in_one_domain(group));
  EXPECT_FALSE(
      CollectiveTimes({.gpus_per_node = 4, .gpus_per_nvlink_domain = 4}, gpu, hardware).is_in_one_domain(group));
}

TEST(CollectiveTimesTest, AnOversubscribedSwitchSlowsWhatLeavesIt) {
  Hardware hardware;
  const CollectiveTimes times(
      {.gpus_per_node = 8, .network_bytes_per_second_per_node = 400e9, .nodes_per_switch = 2, .oversubscription = 4},
      {.nvlink_bus_bytes_per_second = 1e15}, hardware);
  EXPECT_DOUBLE_EQ(times.gather(16e9, {.stride = 1, .size = 16}), 15e9 / 400e9);
  EXPECT_DOUBLE_EQ(times.gather(32e9, {.stride = 1, .size = 32}), 31e9 / 100e9);
}

// Of 8 copies of a token to 8 nodes, 5.25 reach different nodes.
TEST(CollectiveTimesTest, TokensThatCrossOncePerNodeAreFewer) {
  Hardware hardware;
  const CollectiveTimes times({.gpus_per_node = 8, .network_bytes_per_second_per_node = 400e9},
                              {.nvlink_bus_bytes_per_second = 1e15}, hardware);
  const RankGroup group{.stride = 1, .size = 64};
  EXPECT_DOUBLE_EQ(times.all_to_all({.bytes = 64e9, .copies = 8}, group), 56e9 / 50e9);
  const double different = 8 * (1 - std::pow(7.0 / 8, 8));
  EXPECT_NEAR(times.all_to_all({.bytes = 64e9, .copies = 8, .sends_once_per_node = true}, group),
              64e9 * different / 8 * 7 / 8 / 50e9, 1e-9);
  EXPECT_NEAR(times.all_to_all({.bytes = 64e9, .copies = 8, .sends_once_per_node = true, .most_nodes = 4}, group),
              64e9 * 4 / 8 * 7 / 8 / 50e9, 1e-9);
}

}  // namespace
}  // namespace accel::predict::collective_times_test
