// What the cost model counts of a rank's compute, and which findings it reports where it cannot count.
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/state/rank_context.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::rehearsed_compute_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string network_with(const std::string& topology, const std::string& compute) {
  return "name: test\nlibrary: gloo\noverhead_seconds: 0\nreduce_seconds_per_byte: 0\ntopology: {" + topology +
         "}\ncompute: {" + compute + "}\n";
}

constexpr const char* kPlain = "kind: full, latency_seconds: 0, bytes_per_second: 1.0e+9";
// One flop takes a nanosecond and memory costs nothing, so times are counts of flops.
constexpr const char* kFlops = "kind: table, launch_seconds: 0, flops_per_second: 1.0e+9, bytes_per_second: .inf";

class RehearsedComputeTest : public ::testing::Test {
 protected:
  sim::SimulationReport run(const std::string& network, int num_ranks, const std::function<void(RankContext&)>& body) {
    return programs::run_threads(programs::Rehearsal({.network = folder_.write("network.yaml", network)}, num_ranks),
                                 std::chrono::minutes(1), body);
  }

  TemporaryFolder folder_;
};

// The flash algorithm computes one product again in the backward pass, hence five instead of four.
TEST_F(RehearsedComputeTest, AttentionCostsTwoProductsAndItsGradientFive) {
  constexpr double kProduct = 2.0 * 3 * 2 * 5 * 5 * 8;  // (3, 2, 5, 8) by (3, 2, 8, 5)
  const auto seconds = [&](bool differentiates) {
    const auto report = run(network_with(kPlain, kFlops), 1, [&](RankContext& rank) {
      const auto query = at::randn({3, 2, 5, 8}).requires_grad_(differentiates);
      const auto output = at::scaled_dot_product_attention(query, query, query);
      if (differentiates) output.sum().backward();
      rank.world.barrier();
    });
    return report.times.front().compute;
  };
  EXPECT_NEAR(seconds(false), 2 * kProduct / 1e9, 1e-12);
  EXPECT_NEAR(seconds(true), 7 * kProduct / 1e9, 1e-12);
}

// Unlike a convolution, whose output positions count.
TEST_F(RehearsedComputeTest, ATransposedConvolutionCountsItsInputPositions) {
  constexpr double kProducts =
      2.0 * (2 * 8 * 8) * (3 * 5 * 4 * 4);  // 2 x 8 x 8 positions, each from 3 to 5 channels with 4 x 4 weights
  const auto seconds = [&](bool differentiates) {
    const auto report = run(network_with(kPlain, kFlops), 1, [&](RankContext& rank) {
      const auto input = at::randn({2, 3, 8, 8}).requires_grad_(differentiates),
                 weight = at::randn({3, 5, 4, 4}).requires_grad_(differentiates);
      const auto output = at::conv_transpose2d(input, weight, {}, /*stride=*/2, /*padding=*/1);
      if (differentiates) output.sum().backward();
      rank.world.barrier();
    });
    return report.times.front().compute;
  };
  EXPECT_NEAR(seconds(false), kProducts / 1e9, 1e-12);
  EXPECT_NEAR(seconds(true), 3 * kProducts / 1e9, 1e-12);
}

// aten::linear is composed of other operators and never runs as one, so a cost for it would be lost silently.
TEST_F(RehearsedComputeTest, AnEntryOfTheTableWithoutEffectIsReported) {
  const auto table = std::string(kFlops) + ", ops: {\"aten::linear\": {seconds: 5}, \"aten::mul\": {seconds: 2}}";
  const auto report = run(network_with(kPlain, table), 1, [](RankContext& rank) {
    const auto doubled = at::full({2}, 1.0).mul(2.0);
    rank.world.barrier();
  });
  EXPECT_NEAR(report.times.front().compute, 2, 1e-9);
  EXPECT_THAT(report.findings, ElementsAre(HasSubstr("compute.ops.aten::linear had no effect")));
}

// Products of these numbers overflow or exhaust memory, so they must be rejected before any table is built.
TEST_F(RehearsedComputeTest, ImpossibleNetworksAreRejected) {
  for (const std::string topology :
       {"kind: fat_tree, latency_seconds: 0, bytes_per_second: 1, ranks_per_rack: 2, oversubscription: .inf",
        "kind: torus, latency_seconds: 0, bytes_per_second: 1, shape: [2000000000, 2000000000, 2000000000]",
        "kind: nodes, ranks_per_node: 65537, inside: {latency_seconds: 0, bytes_per_second: 1}, card: "
        "{latency_seconds: 0, bytes_per_second: 1}"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { run(network_with(topology, kFlops), 2, [](RankContext&) {}); }),
                HasSubstr("network.yaml:5: topology."))
        << topology;
  }
  const std::string large =
      "kind: nodes, ranks_per_node: 65536, nodes_per_rack: 65536, inside: {latency_seconds: 0, bytes_per_second: 1}, "
      "card: {latency_seconds: 0, bytes_per_second: 1}";
  EXPECT_FALSE(run(network_with(large, kFlops), 2, [](RankContext& rank) { rank.world.barrier(); }).error);
}

// Reading a shape is no data race. The check of buffers in use must not react to operators that only use metadata.
TEST_F(RehearsedComputeTest, ShapesMayBeReadWhileACollectiveRuns) {
  const auto report = run(network_with(kPlain, kFlops), 2, [](RankContext& rank) {
    auto tensor = at::full({4}, 1.0);
    auto work = rank.world.all_reduce(tensor);
    const auto like = at::ones_like(tensor), empty = at::empty_like(tensor),
               same = at::full({2, 2}, 1.0).view_as(tensor), fresh = tensor.new_zeros({3});
    work.wait();
  });
  EXPECT_FALSE(report.error) << message_of(report.error);
  EXPECT_THAT(report.findings, IsEmpty());
}

}  // namespace
}  // namespace accel::testing::rehearsed_compute_test
