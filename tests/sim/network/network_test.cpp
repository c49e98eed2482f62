// The complete network model: closed forms where nothing contends, and properties on random networks. The closed
// forms are derived from the algorithms on paper, independently of the simulation.
#include "sim/network/network.hpp"

#include <gmock/gmock.h>

#include "tests/sim/network/network_examples.hpp"

using ::testing::DoubleNear;
using ::testing::Each;

namespace accel::sim {
namespace {

using namespace accel::sim::testing;
using accel::testing::expect_property;
using accel::testing::pick;

// --- without contention: closed forms --------------------------------------------------------------------------------

// Gloo's all-reduce with P ranks and k segments of `segment` bytes per chunk. Two segments are in flight, so
// latency is hidden as long as the transfer of two segments takes longer.
double gloos_formula(int ranks, int k, double segment, double alpha, double beta, double gamma) {
  return 2 * (ranks - 1) * std::max(k * segment * beta, 0.5 * k * (alpha + segment * beta)) +
         (ranks - 1) * k * segment * gamma;
}

TEST(NetworkTest, AnAllReduceWithoutContentionFollowsGloosFormula) {
  struct Size {
    int k;
    std::int64_t segment;
  };
  // The second latency is longer than a transfer, so both branches of the formula are covered.
  for (const double alpha : {2e-5, 5e-3}) {
    auto spec = full_network();
    std::get<FullSpec>(spec.topology).link.latency_seconds = alpha;
    for (const int ranks : {2, 3, 8, 64}) {
      for (const auto& [k, segment] : {Size{2, 4}, Size{2, 4000}, Size{2, kMiB}, Size{6, kMiB}}) {
        const double formula = gloos_formula(ranks, k, static_cast<double>(segment), alpha, 1e-9, 1e-10);
        const auto ends =
            run_together(spec, {.op = Collective::kAllReduce, .bytes = ranks * k * segment, .num_ranks = ranks});
        EXPECT_THAT(ends, Each(DoubleNear(formula, 1e-9 * formula)))
            << ranks << " ranks, " << k << " segments of " << segment;
      }
    }
  }
}

TEST(NetworkTest, TheOtherCollectivesHaveTheirTextbookTimes) {
  const auto spec = full_network();
  const double hop = 2e-5 + 1e6 * 1e-9;  // one megabyte over one link
  const auto of = [&](Collective op, int ranks, std::int64_t bytes = 1'000'000) {
    return seconds_of(spec, {.op = op, .bytes = bytes, .num_ranks = ranks, .root = 1});
  };
  EXPECT_DOUBLE_EQ(of(Collective::kBroadcast, 8), 3 * hop);
  EXPECT_DOUBLE_EQ(of(Collective::kBroadcast, 9), 4 * hop);
  EXPECT_DOUBLE_EQ(of(Collective::kGather, 8), hop);
  EXPECT_DOUBLE_EQ(of(Collective::kAllGather, 5), 4 * 1e-3);  // two halves are in flight, which hides the latency
  EXPECT_DOUBLE_EQ(of(Collective::kBarrier, 8), 3 * 2e-5);
  EXPECT_DOUBLE_EQ(of(Collective::kBarrier, 9), 4 * 2e-5);
  EXPECT_DOUBLE_EQ(of(Collective::kAllToAll, 4, 4'000'000), hop);
  EXPECT_DOUBLE_EQ(of(Collective::kSend, 2), hop);
  EXPECT_DOUBLE_EQ(of(Collective::kAllReduce, 1), 0);
}

// 2 (P - 1) steps with 1/P of the data; half of them also add.
TEST(NetworkTest, NcclsRingHasTheTextbookTime) {
  const auto spec = full_network(Library::kNccl);
  const double chunk = 1e6;
  EXPECT_DOUBLE_EQ(seconds_of(spec, {.op = Collective::kAllReduce, .bytes = 4'000'000, .num_ranks = 4}),
                   6 * (2e-5 + chunk * 1e-9) + 3 * chunk * 1e-10);
  EXPECT_DOUBLE_EQ(seconds_of(spec, {.op = Collective::kReduceScatterTensor, .bytes = 4'000'000, .num_ranks = 4}),
                   3 * (2e-5 + chunk * 1e-9) + 3 * chunk * 1e-10);
}

// The reason why libraries switch between the two algorithms.
TEST(NetworkTest, ATreeIsFasterForOneNumberAndSlowerForAMegabyte) {
  const auto ring = full_network();
  auto tree = ring;
  tree.tree_all_reduce_bytes_max = 4 * kMiB;
  const CollectiveCall one{.op = Collective::kAllReduce, .bytes = 4, .num_ranks = 32},
      many{.op = Collective::kAllReduce, .bytes = 4 * kMiB, .num_ranks = 32};
  EXPECT_LT(seconds_of(tree, one), 0.2 * seconds_of(ring, one));
  EXPECT_GT(seconds_of(tree, many), 2 * seconds_of(ring, many));
}

// Runs a plan by the recurrence, or by the closed form if there are at least `closed_form_ranks_min` ranks.
std::vector<double> run_ring(const CollectivePlan& plan, const std::vector<double>& ready, bool is_even,
                             int closed_form_ranks_min) {
  std::vector<PairCosts> costs(ready.size(), {.latency_seconds = 2e-5, .seconds_per_byte = 1e-9});
  if (!is_even) costs[0].latency_seconds = 1e-3;
  return run_plan(
      plan, ready,
      {.reduce_seconds_per_byte = 1e-10, .time_factor = 1.5, .closed_form_ranks_min = closed_form_ranks_min},
      [&](const Stage&, int, const std::vector<Message>&, double) { return std::span<const PairCosts>(costs); });
}

// The closed form makes sweeps to thousands of ranks affordable. It is only right for even rings.
TEST(NetworkTest, TheClosedFormAgreesWithTheRecurrence) {
  for (const auto library : {Library::kGloo, Library::kNccl}) {
    for (const int ranks : {2, 5, 64, 256}) {
      const auto plan =
          plan_collective({.op = Collective::kAllReduce, .bytes = ranks * 8 * 1000, .num_ranks = ranks}, library);
      const std::vector<double> ready(ranks, 0.5);
      const auto exact = run_ring(plan, ready, /*is_even=*/true, ranks + 1),
                 closed = run_ring(plan, ready, /*is_even=*/true, ranks);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_NEAR(closed[rank] - 0.5, exact[rank] - 0.5, 1e-9 * exact[rank]);
    }
  }
}

TEST(NetworkTest, TheClosedFormIsOnlyUsedForEvenPairsAndTimes) {
  const auto plan = plan_collective({.op = Collective::kAllGather, .bytes = 1000, .num_ranks = 16}, Library::kGloo);
  std::vector<double> ready(16, 0.5);
  EXPECT_EQ(run_ring(plan, ready, /*is_even=*/false, 16), run_ring(plan, ready, /*is_even=*/false, 17));
  ready[3] = 0;
  EXPECT_EQ(run_ring(plan, ready, /*is_even=*/true, 16), run_ring(plan, ready, /*is_even=*/true, 17));
}

// --- properties ---
// --- laws ------------------------------------------------------------------------------------------------------------

// Monotonicity: otherwise a slower rank could make a predicted step faster.
TEST(NetworkTest, ALaterCallNeverEndsAnythingEarlier) {
  expect_property(150, [] {
    const auto spec = any_network();
    const auto call = any_call();
    auto ready = any_times(call.num_ranks);
    const auto before = run_alone(spec, call, ready);
    ready[pick(0, call.num_ranks)] += pick(1, 1000) * 1e-5;
    const auto after = run_alone(spec, call, ready);
    for (int rank = 0; rank < call.num_ranks; ++rank) RC_ASSERT(after[rank] >= before[rank]);
  });
}

// With contention this is not a law: a slow sender may leave a link to another one.
TEST(NetworkTest, SlowerLinksNeverEndAnythingEarlierWithoutContention) {
  expect_property(150, [] {
    auto spec = any_contention_free_network();
    const auto call = any_call();
    const auto ready = any_times(call.num_ranks);
    const auto before = run_alone(spec, call, ready);
    std::get<FullSpec>(spec.topology).link.latency_seconds *= 1 + pick(0, 100) * 0.1;
    const auto after = run_alone(spec, call, ready);
    for (int rank = 0; rank < call.num_ranks; ++rank) RC_ASSERT(after[rank] >= before[rank]);
  });
}

// Returns the ranks whose data a rank needs before it can finish: all, only the root, or none.
std::vector<int> awaited_by(const CollectiveCall& call, int rank) {
  if (call.op == Collective::kGather || call.op == Collective::kReduce)
    return rank == call.root ? first_ranks(call.num_ranks) : std::vector{rank};
  if (call.op == Collective::kBroadcast || call.op == Collective::kScatter) return {rank, call.root};
  return first_ranks(call.num_ranks);
}

// Causality. Errors in a schedule of transfers usually break it.
TEST(NetworkTest, NoRankFinishesBeforeTheRanksThatItWaitsFor) {
  expect_property(150, [] {
    const auto spec = any_network();
    auto call = any_call();
    call.bytes += call.element_bytes * call.num_ranks;  // without bytes no rank waits
    const auto ready = any_times(call.num_ranks);
    const auto ends = run_alone(spec, call, ready);
    for (int rank = 0; rank < call.num_ranks; ++rank) {
      for (const int other : awaited_by(call, rank)) RC_ASSERT(ends[rank] >= ready[other]);
    }
  });
}

// Runs several collectives of different groups on one network.
std::vector<double> run_several(const NetworkSpec& spec, const std::vector<CollectiveCall>& calls,
                                const std::vector<double>& ready) {
  auto network = with_ranks(spec, 24);
  std::vector<double> all;
  std::uint64_t group = 0;
  for (const auto& call : calls) {
    const auto ranks = first_ranks(call.num_ranks);
    const auto ends = network.finish_times(++group, {call.op, call.bytes, call.element_bytes, &ranks, call.root},
                                           std::span(ready).first(call.num_ranks));
    all.insert(all.end(), ends.begin(), ends.end());
  }
  return all;
}

// Exact equality is needed, because virtual time orders events and must be reproducible.
TEST(NetworkTest, TheSameCallsGiveTheSameTimesToTheLastBit) {
  expect_property(50, [] {
    const auto spec = any_network();
    const std::vector<CollectiveCall> calls = {any_call(), any_call(), any_call()};
    const auto ready = any_times(24);
    RC_ASSERT(run_several(spec, calls, ready) == run_several(spec, calls, ready));
  });
}

}  // namespace
}  // namespace accel::sim
