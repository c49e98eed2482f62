// How collectives share a network that several of them use at the same time, and which calls are rejected.
#include <gmock/gmock.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "tests/sim/network/network_examples.hpp"

namespace accel::sim {
namespace {

using namespace accel::sim::testing;

// A node of four ranks has one uplink, `oversubscription` times slower than the sum of its ports.
NetworkSpec fat_tree(double oversubscription) {
  auto spec = full_network();
  spec.topology = TreeSpec{.tiers = {{.port = {1e-6, 1e9}}, {.units = 4, .port = {1e-6, 4e9 / oversubscription}}}};
  return spec;
}

// The time of an all-to-all among these ranks, which uses all links at once.
double exchange_seconds(const NetworkSpec& spec, const std::vector<int>& ranks) {
  auto network = with_ranks(spec, 8);
  return latest(network.finish_times(0, {.op = Collective::kAllToAll, .bytes = 8 * kMiB, .ranks = &ranks},
                                     std::vector<double>(ranks.size(), 0)));
}

// Racks hold four ranks; the uplink of a rack has one eighth of the rate of its ports together.
TEST(NetworkSharingTest, OversubscriptionSlowsOnlyTrafficThatLeavesTheRack) {
  const std::vector<int> inside = {0, 1, 2, 3}, across = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_DOUBLE_EQ(exchange_seconds(fat_tree(8), inside), exchange_seconds(fat_tree(1), inside));
  EXPECT_GT(exchange_seconds(fat_tree(8), across), 3 * exchange_seconds(fat_tree(1), across));
}

// With two ranks the core is fast enough; with eight it limits them.
TEST(NetworkSharingTest, ACoreThatAllMessagesCrossIsSharedByAll) {
  auto spec = full_network();
  spec.reduce_seconds_per_byte = 0;
  spec.topology = TreeSpec{.tiers = {{.port = {0, 1e9}}}, .core_bytes_per_second = 2e9};
  const auto seconds = [&](int ranks) {
    return seconds_of(spec, {.op = Collective::kAllReduce, .bytes = 8'000'000, .num_ranks = ranks});
  };
  EXPECT_DOUBLE_EQ(seconds(2), 8e-3);
  EXPECT_DOUBLE_EQ(seconds(8), 2 * 7 * 1e-3 * 4);  // eight messages share a core with the capacity of two
}

class TwoGroups : public ::testing::Test {
 protected:
  static NetworkSpec spec(int lanes) {
    auto spec = full_network();
    spec.lanes = lanes;
    spec.topology = TreeSpec{.tiers = {{.port = kPort}, {.units = 2, .port = kPort}}};
    return spec;
  }
  double send(Network& network, int group, const std::vector<int>& ranks, double bytes, double ready) {
    return latest(network.finish_times(
        group, {.op = Collective::kSend, .bytes = static_cast<std::int64_t>(bytes), .ranks = &ranks},
        std::vector{ready, ready}));
  }
  static constexpr LinkCosts kPort{0, 1e9};
  const std::vector<int> first_ = {0, 2}, second_ = {1, 3},
                         apart_ = {4, 6};  // the first two groups leave a node through the same port
};

// Finish times are decided when a call completes, so the first transfer is never extended afterwards. The second
// one pays for both.
TEST_F(TwoGroups, TheSecondOfTwoEqualTransfersTakesTwiceAsLong) {
  auto network = with_ranks(spec(/*lanes=*/1), 8);
  EXPECT_DOUBLE_EQ(send(network, 0, first_, 1e6, 0), 1e-3);
  EXPECT_DOUBLE_EQ(send(network, 1, second_, 1e6, 0), 2e-3);
}

// A message of four slices, and a chain of sixteen that starts with it. With fair sharing the chain ends after all
// twenty.
TEST_F(TwoGroups, ALongerTransferSharesWithTheFirstOne) {
  auto nccl = spec(/*lanes=*/1);
  nccl.library = Library::kNccl;
  auto network = with_ranks(nccl, 8);
  const double slice = 512 << 10;
  EXPECT_DOUBLE_EQ(send(network, 0, first_, 4 * slice, 0), 4 * slice * 1e-9);
  const auto ends =
      network.finish_times(1, {.op = Collective::kBroadcast, .bytes = 16 * (512 << 10), .ranks = &second_, .root = 0},
                           std::vector{0.0, 0.0});
  EXPECT_DOUBLE_EQ(latest(ends), 20 * slice * 1e-9);
}

// Sharing may only take place between transfers that use the same link at the same time.
TEST_F(TwoGroups, TransfersOnOtherLinksOrAtOtherTimesAreNotSlowed) {
  auto network = with_ranks(spec(/*lanes=*/1), 8);
  EXPECT_DOUBLE_EQ(send(network, 0, first_, 1e6, 0), 1e-3);
  EXPECT_DOUBLE_EQ(send(network, 1, apart_, 1e6, 0), 1e-3);
  EXPECT_DOUBLE_EQ(send(network, 2, second_, 1e6, 1e-3), 2e-3);
}

// With one lane, a short transfer waits for the long one; with two, both run and share the link.
TEST_F(TwoGroups, AGroupRunsOneCollectivePerLaneAtATime) {
  auto one = with_ranks(spec(/*lanes=*/1), 8), two = with_ranks(spec(/*lanes=*/2), 8);
  for (auto* network : {&one, &two}) EXPECT_DOUBLE_EQ(send(*network, 0, first_, 1e6, 0), 1e-3);
  EXPECT_DOUBLE_EQ(send(one, 0, first_, 1e3, 0), 1e-3 + 1e-6);  // waits
  EXPECT_DOUBLE_EQ(send(two, 0, first_, 1e3, 0), 2e-6);         // shares
  EXPECT_DOUBLE_EQ(send(two, 0, first_, 1e3, 0), 4e-6);         // waits for the short one
}

// Unlike other collectives: Gloo's barrier first waits for everything that was issued before.
TEST_F(TwoGroups, GloosBarrierWaitsForTheCollectivesBeforeIt) {
  auto network = with_ranks(spec(/*lanes=*/2), 8);
  send(network, 0, first_, 1e6, 0);
  EXPECT_DOUBLE_EQ(
      latest(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &first_}, std::vector{0.0, 0.0})), 1e-3);
}

// A sweep uses one network for all its runs; transfers of the last run must not slow the next one.
TEST_F(TwoGroups, AnotherRunStartsWithFreeLinks) {
  auto network = with_ranks(spec(/*lanes=*/1), 8);
  send(network, 0, first_, 1e6, 0);
  network.set_ranks(8);
  EXPECT_DOUBLE_EQ(send(network, 1, second_, 1e6, 0), 1e-3);
}

TEST_F(TwoGroups, ASlowedLinkSlowsItsDirectionAlone) {
  auto network = with_ranks(spec(/*lanes=*/1), 8);
  send(network, 0, first_, 1e6, 0);  // fills the cache of costs, which must be invalidated
  network.scale_link(0, 2, 4);
  EXPECT_DOUBLE_EQ(send(network, 0, first_, 1e6, 1), 1 + 4e-3);
  EXPECT_DOUBLE_EQ(send(network, 1, {2, 0}, 1e6, 2), 2 + 1e-3);
  EXPECT_DOUBLE_EQ(send(network, 2, second_, 1e6, 3), 3 + 1e-3);
}

// Both parts of the time must be scaled, and only in one direction.
TEST(NetworkSharingTest, ASlowedSeparateLinkIsSlowerInLatencyAndRate) {
  auto network = with_ranks(full_network(), 4);
  network.scale_link(0, 1, 3);
  const std::vector<int> there = {0, 1}, back = {1, 0};
  const auto send = [&](int group, const std::vector<int>& ranks) {
    return latest(
        network.finish_times(group, {.op = Collective::kSend, .bytes = 1000, .ranks = &ranks}, std::vector{0.0, 0.0}));
  };
  EXPECT_DOUBLE_EQ(send(0, there), 3 * (2e-5 + 1e-6));
  EXPECT_DOUBLE_EQ(send(1, back), 2e-5 + 1e-6);
}

// These are errors in the engine. Computing a time anyway would hide them in wrong predictions.
TEST(NetworkSharingTest, CallsThatDoNotFitAreRejected) {
  Network network(full_network());
  const std::vector<int> ranks = {0, 1}, others = {0, 2}, outside = {0, 9};
  const std::vector<double> two(2), three(3);
  EXPECT_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &ranks}, two), StateError);
  EXPECT_THROW(network.scale_link(0, 1, 2), StateError);
  network.set_ranks(4);
  EXPECT_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &ranks}, three), ArgumentError);
  // The same group number with other members, and members that do not exist.
  EXPECT_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &outside}, two), ArgumentError);
  EXPECT_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &ranks}, std::vector{0.0, std::nan("")}),
               ArgumentError);
  EXPECT_NO_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &ranks}, two));
  EXPECT_THROW(network.finish_times(0, {.op = Collective::kBarrier, .ranks = &others}, two), ArgumentError);
  EXPECT_THROW(network.scale_link(1, 1, 2), ArgumentError);
  EXPECT_THROW(network.scale_link(0, 1, 0), ArgumentError);
}

}  // namespace
}  // namespace accel::sim
