// Routes through trees, rings and tori, and links whose costs a file overrides. Routes decide what contends.
#include "sim/network/topology.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/sim/network/network_examples.hpp"

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

namespace accel::sim {
namespace {

constexpr LinkCosts kPort{1e-6, 1e9};

// Nodes of four ranks with two cards each, in racks of two nodes.
TreeSpec racks() {
  // The latencies differ by powers of ten, so a sum shows which tiers a route crosses.
  return {.tiers = {{.port = kPort}, {.units = 4, .ports = 2, .port = {1e-5, 1e8}}, {.units = 2, .port = {1e-4, 1e7}}}};
}

double latency(Topology& topology, int from, int to) { return topology.latency_seconds(topology.route(from, to)); }

// Each tier has a latency ten times that of the tier below, so the sum shows which tiers a message crossed.
TEST(TopologyTest, InATreeAMessageTurnsAtTheLowestCommonTier) {
  Topology topology(racks(), {}, 16);
  EXPECT_DOUBLE_EQ(latency(topology, 0, 3), 2e-6);
  EXPECT_DOUBLE_EQ(latency(topology, 3, 4), 2e-6 + 2e-5);
  EXPECT_DOUBLE_EQ(latency(topology, 7, 8), 2e-6 + 2e-5 + 2e-4);
}

// Two ranks for each card, neighbours first, as on real machines.
TEST(TopologyTest, RanksOfANodeShareItsCardsInOrder) {
  Topology topology(racks(), {}, 16);
  const auto card = [&](int rank) { return topology.route(rank, rank ^ 4)[1]; };
  EXPECT_EQ(card(0), card(1));
  EXPECT_EQ(card(2), card(3));
  EXPECT_NE(card(1), card(2));
  EXPECT_NE(card(0), card(4));
}

// Cables are full duplex: traffic in one direction does not slow the other.
TEST(TopologyTest, TheTwoDirectionsShareNoLink) {
  Topology topology(racks(), {}, 16);
  auto there = topology.route(0, 9);
  const auto back = topology.route(9, 0);
  for (const int link : back) EXPECT_THAT(there, Not(Contains(link)));
}

// The expected numbers of links are counted by hand; in a ring of 4, the distance from 0 to 3 is 1.
TEST(TopologyTest, OnATorusAMessageGoesTheShortWayInEveryDimension) {
  Topology topology(TorusSpec{.shape = {4, 4, 3}, .link = kPort}, {}, 48);
  EXPECT_THAT(topology.route(0, 1), SizeIs(1));
  EXPECT_THAT(topology.route(0, 3), SizeIs(1));  // wraps around
  EXPECT_THAT(topology.route(0, 2), SizeIs(2));
  EXPECT_THAT(topology.route(0, 3 + 4 * 3 + 16 * 2), SizeIs(3));
  EXPECT_THAT(topology.route(5, 5 + 2 + 8 + 16), SizeIs(5));
}

// A ring is a torus of one dimension.
TEST(TopologyTest, OnARingNeighboursShareALinkAndTheOthersCrossIt) {
  Topology topology(TorusSpec{.link = kPort}, {}, 5);
  const auto far = topology.route(0, 2);
  EXPECT_THAT(far, ElementsAre(topology.route(0, 1)[0], topology.route(1, 2)[0]));
  EXPECT_THAT(topology.route(0, 3), ElementsAre(topology.route(0, 4)[0], topology.route(4, 3)[0]));
}

// Follows every route link by link, so a route that jumps or ends elsewhere is found.
TEST(TopologyTest, EveryRouteOfATorusLeadsFromNeighbourToNeighbour) {
  Topology topology(TorusSpec{.shape = {3, 4}, .link = kPort}, {}, 12);
  std::map<int, std::pair<int, int>> ends;  // the two ends of each link
  for (int from = 0; from < 12; ++from) {
    for (int to = 0; to < 12; ++to) {
      if (from != to && topology.route(from, to).size() == 1) ends[topology.route(from, to)[0]] = {from, to};
    }
  }
  for (int from = 0; from < 12; ++from) {
    for (int to = 0; to < 12; ++to) {
      if (from == to) continue;
      int place = from;
      for (const int link : topology.route(from, to)) {
        ASSERT_EQ(ends.at(link).first, place) << from << " to " << to;
        place = ends.at(link).second;
      }
      EXPECT_EQ(place, to);
    }
  }
}

// A slow cable slows every message that crosses it, not only those between its ends.
TEST(TopologyTest, AnOverrideChangesALinkThatOtherRoutesShare) {
  Topology topology(TorusSpec{.link = kPort}, {{.from = 0, .to = 1, .costs = {1e-3, 1e6}}}, 5);
  EXPECT_DOUBLE_EQ(latency(topology, 0, 2), 1e-3 + 1e-6);
  EXPECT_DOUBLE_EQ(latency(topology, 2, 0), 2e-6);
}

// Such ranks have no cable of their own in a tree, so the override adds one.
TEST(TopologyTest, AnOverrideBetweenRanksOfATreeIsASeparateLink) {
  Topology topology(racks(), {{.from = 0, .to = 9, .costs = {1e-3, 1e6}}}, 16);
  EXPECT_THAT(topology.route(0, 9), SizeIs(1));
  EXPECT_DOUBLE_EQ(latency(topology, 0, 9), 1e-3);
  EXPECT_DOUBLE_EQ(latency(topology, 0, 10), 2e-6 + 2e-5 + 2e-4);
}

// The same file serves runs with fewer ranks.
TEST(TopologyTest, AnOverrideOfAbsentRanksIsIgnored) {
  Topology topology(racks(), {{.from = 0, .to = 9, .costs = {1e-3, 1e6}}}, 8);
  EXPECT_DOUBLE_EQ(latency(topology, 0, 7), 2e-6 + 2e-5);
}

std::string refusal(const TopologySpec& spec, int num_ranks) {
  try {
    Topology topology(spec, {}, num_ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// For each kind of topology that has a size.
TEST(TopologyTest, MoreRanksThanPlacesAreRejectedWithBothNumbers) {
  EXPECT_EQ(refusal(TorusSpec{.shape = {4, 4}, .link = kPort}, 16), "");
  EXPECT_THAT(refusal(TorusSpec{.shape = {4, 4}, .link = kPort}, 17), HasSubstr("holds 16 ranks, but there are 17"));
  EXPECT_THAT(refusal(TreeSpec{.tiers = {{.port = kPort}}, .num_ranks_max = 8}, 9),
              HasSubstr("holds 8 ranks, but there are 9"));
  EXPECT_THAT(refusal(FullSpec{kPort}, 0), HasSubstr("expected 1 or more"));
}

}  // namespace
}  // namespace accel::sim
