// The time of a step that is computed from one rank's trace is the virtual time of simulated ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <random>

#include "reference/core/errors.hpp"
#include "reference/mesh/mesh.hpp"
#include "reference/state/device_mesh.hpp"
#include "sim/backend/first_rank.hpp"
#include "sim/programs/layouts/traced_step.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::traced_step {
namespace {

using ::testing::ElementsAre;

TEST(GroupsLikeTest, TranslationsOfAGroupAreTheGroupsOfItsMesh) {
  EXPECT_THAT(programs::groups_like({0, 1}, 4), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(programs::groups_like({0, 2}, 4), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  const auto mesh = mesh_of({.dp_replicate_size = 2, .dp_shard_size = 3, .cp_size = 2, .tp_size = 2});
  for (const auto& kind : mesh_group_kinds()) {
    const auto groups = mesh.groups(kind.axes);
    EXPECT_EQ(programs::groups_like(groups.front(), mesh.num_ranks()), groups) << kind.name;
  }
  EXPECT_THROW(programs::groups_like({0, 2}, 6), ArgumentError);
}

// Random steps of compute, calls and waits over the groups of a mesh, the same on every rank. A message begins when no
// collective is pending: the two would share a link, and their order there differs between runs.
void run_random_step(RankContext& rank, const DeviceMesh& mesh, std::mt19937& random) {
  const auto pick = [&](int count) { return static_cast<int>(random() % count); };
  std::vector<std::pair<Work, std::vector<at::Tensor>>> pending;  // with the tensors that it uses
  const auto wait_for_all = [&] {
    for (auto& [work, tensors] : pending) work.wait();
    pending.clear();
  };
  for (int index = 0; index < 12; ++index) {
    const char* names[] = {"dp", "cp", "tp"};
    const auto& group = mesh[names[pick(3)]];
    auto values = torch::ones({group.size() * (1 + pick(300))});
    const auto count = pick(6);
    if (count == 0) values.add_(1);  // compute
    if (count == 1) pending.emplace_back(group.all_reduce(values), std::vector{values});
    if (count == 2) pending.emplace_back(group.broadcast(values, group.size() - 1), std::vector{values});
    if (count == 3) static_cast<void>(group.all_gather(values));
    if (count == 4) {
      auto part = torch::zeros({values.size(0) / group.size()});
      group.reduce_scatter(part, values).wait();
    }
    if (count == 5) {
      wait_for_all();
      auto received = torch::zeros_like(values);
      auto sending = group.send(values, (group.rank() + 1) % group.size());
      group.recv(received, (group.rank() + group.size() - 1) % group.size()).wait();
      sending.wait();
    }
    if (!pending.empty() && pick(3) == 0) {
      pending.front().first.wait();
      pending.erase(pending.begin());
    }
  }
  wait_for_all();
  rank.listener->after_update();
}

// All ranks begin the step at the same time, as a replay does.
void run_program(RankContext& rank, unsigned seed) {
  const DeviceMesh mesh(rank, {.dp_replicate_size = 2, .cp_size = 4, .tp_size = 2});
  std::mt19937 random(seed);
  rank.listener->after_update();
  run_random_step(rank, mesh, random);
}

class TracedStepTest : public ::testing::Test {
 protected:
  // Every pair of ranks has its own link, so the order in which the network is asked does not matter.
  std::string network(const std::string& library) const {
    return folder_.write(library + ".yaml", "name: test\nlibrary: " + library +
                                                "\noverhead_seconds: 3.0e-6\nreduce_seconds_per_byte: 1.0e-9\n"
                                                "topology: {kind: full, latency_seconds: 2.0e-6, bytes_per_second: "
                                                "1.0e8}\ncompute: {kind: table, launch_seconds: 5.0e-6, "
                                                "flops_per_second: 1.0e9, bytes_per_second: 1.0e9}\n");
  }
  TemporaryFolder folder_;
};

TEST_F(TracedStepTest, AStepTakesTheVirtualTimeOfSimulatedRanks) {
  for (const auto* library : {"gloo", "nccl"}) {
    for (unsigned seed = 0; seed < 25; ++seed) {
      auto costs = sim::Network::load(network(library));
      const auto trace = sim::run_first_rank(
          {.num_ranks = 16,
           .operator_seconds = [&](auto op, auto flops,
                                   auto bytes) { return costs.compute().seconds_of(op, flops, bytes); }},
          [&](RankContext& rank) { run_program(rank, seed); });
      const auto step = programs::time_of_step(trace, costs);
      programs::RehearsalOptions options{.network = network(library)};
      options.report = folder_.path();
      const auto report = programs::run_threads(programs::Rehearsal(options, 16), std::chrono::minutes(1),
                                                [&](RankContext& rank) { run_program(rank, seed); });
      ASSERT_FALSE(report.error);
      double end = 0;
      for (const auto& rank : report.times) end = std::max(end, rank.updates[1].now);
      EXPECT_NEAR(step.seconds, end, 1e-9 * end) << library << ", seed " << seed;
    }
  }
}

TEST_F(TracedStepTest, ATraceOfOneStepIsRefused) {
  auto costs = sim::Network::load(network("nccl"));
  const auto trace = sim::run_first_rank({.num_ranks = 2}, [](RankContext& rank) { rank.listener->after_update(); });
  EXPECT_THROW(programs::time_of_step(trace, costs), ArgumentError);
}

}  // namespace
}  // namespace accel::testing::traced_step
