// Device meshes: how ranks are divided into groups for data, tensor, context and sequence parallelism. Wrong
// strides would still train, with ranks exchanging gradients of different parameters.
#include "reference/mesh/mesh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Makes sizes of five axes with at most 4^5 ranks. cp and sp exclude each other.
ParallelismConfig any_config() {
  const auto size = [] { return *rc::gen::inRange(1, 5); };
  ParallelismConfig config{
      .dp_replicate_size = size(), .dp_shard_size = size(), .cp_size = size(), .sp_size = size(), .tp_size = size()};
  if (config.cp_size > 1) config.sp_size = 1;
  return config;
}

int num_ranks(const ParallelismConfig& config) { return mesh_of(config).num_ranks(); }

// Whether every rank is in exactly one of the groups.
bool is_partition(const RankGroups& groups, int num_ranks) {
  std::vector<int> ranks;
  for (const auto& group : groups) ranks.insert(ranks.end(), group.begin(), group.end());
  std::sort(ranks.begin(), ranks.end());
  std::vector<int> all(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) all[rank] = rank;
  return ranks == all;
}

template <typename Member>
RankGroups all_groups(const ShardGroupPlan& plan, Member member) {
  RankGroups groups;
  for (const auto& peers : plan.peers) groups.insert(groups.end(), (peers.*member).begin(), (peers.*member).end());
  return groups;
}

// Every rank must be in exactly one group of each axis.
RC_GTEST_PROP(MeshLaws, GroupsOfEachAxisPartitionTheRanks, ()) {
  const auto mesh = mesh_of(any_config());
  for (const std::size_t axis : {kReplicateAxis, kShardAxis, kContextAxis, kSequenceAxis, kTensorAxis}) {
    const auto groups = mesh.groups({axis});
    RC_ASSERT(is_partition(groups, mesh.num_ranks()));
    for (const auto& group : groups) {
      RC_ASSERT(group.size() == static_cast<std::size_t>(mesh.size(axis)));
      for (std::size_t i = 0; i < group.size(); ++i) RC_ASSERT(mesh.coordinate(group[i], axis) == static_cast<int>(i));
    }
  }
}

// Rank r among the ranks that share batches is r * stride + peer, and `peer` varies slowest over the groups.
RC_GTEST_PROP(MeshLaws, DataParallelGroupsHaveTheStrideOfTheOtherAxes, ()) {
  const auto config = any_config();
  const int size = config.dp_replicate_size * config.dp_shard_size, stride = num_ranks(config) / size;
  const int rank = *rc::gen::inRange(0, num_ranks(config));
  const auto plan = plan_data_parallel(config, {.rank = rank, .world_size = num_ranks(config)});
  RC_ASSERT(plan.size == size);
  RC_ASSERT(plan.rank == rank / stride);
  RankGroups expected;
  for (int peer = 0; peer < stride; ++peer) {
    auto& ranks = expected.emplace_back();
    for (int r = 0; r < size; ++r) ranks.push_back(r * stride + peer);
  }
  RC_ASSERT(mesh_of(config).groups(axes_of("dp")) == expected);
}

// Experts add an axis along which ranks read other samples, too.
RC_GTEST_PROP(MeshLaws, RanksThatReadOtherSamplesAreNumberedByTheirGroup, ()) {
  auto config = any_config();
  config.ep_size = *rc::gen::inRange(1, 4);
  const auto groups = mesh_of(config).groups(axes_of("dp"));
  for (const auto& ranks : groups) {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const auto plan = plan_data_parallel(config, {.rank = ranks[place], .world_size = num_ranks(config)});
      RC_ASSERT(plan.size == static_cast<int>(ranks.size()));
      RC_ASSERT(plan.rank == static_cast<int>(place));
    }
  }
}

// Source of the first two: accelerate/parallelism_config.py. A wrong axis would average gradients of different
// parameters, or read samples twice.
TEST(MeshPlanTest, GroupsCombineTheseAxes) {
  EXPECT_THAT(axes_of("dp"), ElementsAre(kReplicateAxis, kShardAxis, kExpertAxis));
  EXPECT_THAT(axes_of("dp_shard_cp"), ElementsAre(kShardAxis, kContextAxis, kSequenceAxis));
  EXPECT_THAT(axes_of("dp_cp"), ElementsAre(kReplicateAxis, kShardAxis, kContextAxis, kSequenceAxis, kExpertAxis));
  EXPECT_THAT(axes_of("expert_dp"), ElementsAre(kReplicateAxis, kShardAxis, kContextAxis, kSequenceAxis));
  EXPECT_THAT(axes_of("tp"), ElementsAre(kTensorAxis));
}

TEST(MeshPlanTest, AnUnknownGroupIsAnErrorThatListsTheNames) {
  try {
    (void)axes_of("tpp");
    FAIL() << "accepted";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("no group 'tpp'"), HasSubstr("dp_shard_cp")));
  }
}

// A rank in two shard groups would hold two shards, and one in none would hold nothing.
RC_GTEST_PROP(MeshLaws, EveryRankHasOneShardGroupAndOneReplicaGroup, ()) {
  const auto config = any_config();
  const int world_size = num_ranks(config), rank = *rc::gen::inRange(0, world_size);
  const auto plan = plan_shard_groups(config, {.rank = rank, .world_size = world_size}, /*hybrid=*/false);
  const auto shards = all_groups(plan, &ShardGroupPlan::Peers::shards);
  const auto replicas = all_groups(plan, &ShardGroupPlan::Peers::replicas);
  RC_ASSERT(is_partition(shards, world_size));
  RC_ASSERT(replicas.empty() == (config.dp_replicate_size == 1 || world_size == config.tp_size * config.ep_size));
  RC_ASSERT(replicas.empty() || is_partition(replicas, world_size));
  for (const auto& group : shards) {
    for (const auto& other : replicas) {
      const auto in_both = std::count_if(group.begin(), group.end(), [&](int member) {
        return std::find(other.begin(), other.end(), member) != other.end();
      });
      RC_ASSERT(in_both <= 1);
    }
  }
}

// Tensor- and expert-parallel ranks are neighbours, so ranks that share the shards of a model are this far apart.
RC_GTEST_PROP(MeshLaws, ShardGroupsHaveTheStrideOfTheTensorAndExpertAxes, ()) {
  auto config = any_config();
  config.ep_size = *rc::gen::inRange(1, 4);
  const int stride = config.tp_size * config.ep_size, size = num_ranks(config) / stride;
  const int num_shards = size == 1 ? 1 : size / config.dp_replicate_size;
  const auto plan = plan_shard_groups(config, {.world_size = num_ranks(config)}, /*hybrid=*/false);
  RC_ASSERT(plan.peers.size() == static_cast<std::size_t>(stride));
  for (int peer = 0; peer < stride; ++peer) {
    RankGroups shards, replicas;
    for (int first = 0; first < size; first += num_shards) {
      auto& ranks = shards.emplace_back();
      for (int shard = 0; shard < num_shards; ++shard) ranks.push_back((first + shard) * stride + peer);
    }
    for (int shard = 0; shard < num_shards && num_shards < size; ++shard) {
      auto& ranks = replicas.emplace_back();
      for (int first = 0; first < size; first += num_shards) ranks.push_back((first + shard) * stride + peer);
    }
    RC_ASSERT(plan.peers[peer].shards == shards);
    RC_ASSERT(plan.peers[peer].replicas == replicas);
  }
}

TEST(MeshPlanTest, AConfigHasTheSizesOfItsParts) {
  const ParallelismConfig config{.dp_replicate_size = 2, .dp_shard_size = 3, .sp_size = 5, .tp_size = 7};
  EXPECT_EQ(config.data_parallel_size(), 6);
  EXPECT_EQ(config.non_data_parallel_size(), 35);
  EXPECT_EQ(config.total_size(), 210);
  EXPECT_TRUE(config.dp_replicate_enabled() && config.dp_shard_enabled() && config.sp_enabled() && config.tp_enabled());
  EXPECT_FALSE(config.cp_enabled());
  const ParallelismConfig only_cp{.cp_size = 2};
  EXPECT_TRUE(only_cp.cp_enabled());
  EXPECT_FALSE(only_cp.dp_replicate_enabled() || only_cp.dp_shard_enabled() || only_cp.sp_enabled() ||
               only_cp.tp_enabled());
  constexpr int kHuge = 1 << 16;
  EXPECT_EQ((ParallelismConfig{.dp_shard_size = kHuge, .tp_size = kHuge}).total_size(), std::int64_t{1} << 32);
}

// Accelerate refuses the first, because its DDP cannot average over part of the world, and the second under FSDP 2.
TEST(MeshPlanTest, MeshesThatAccelerateRefusesAreValid) {
  EXPECT_NO_THROW(check_mesh({.dp_replicate_size = 2, .tp_size = 2}, 4));
  EXPECT_NO_THROW(check_mesh({.tp_size = 4}, 4));
  const auto plan = plan_shard_groups(ParallelismConfig{.tp_size = 4}, {.rank = 1, .world_size = 4}, false);
  EXPECT_EQ(plan.peers.at(1).shards, (RankGroups{{1}}));
}

TEST(MeshPlanTest, WithoutAConfigTheWorldIsOneDataParallelGroup) {
  const RankPlace place{.rank = 2, .world_size = 4, .local_world_size = 2};
  const auto plan = plan_data_parallel(std::nullopt, place);
  EXPECT_EQ(plan.size, 4);
  EXPECT_EQ(plan.rank, 2);
  const auto shards = plan_shard_groups(std::nullopt, place, /*hybrid=*/false);
  ASSERT_EQ(shards.peers.size(), 1U);
  EXPECT_THAT(shards.peers[0].shards, ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(shards.peers[0].replicas, IsEmpty());
}

// HYBRID_SHARD: shards within a machine over fast links, replicas across machines.
TEST(MeshPlanTest, HybridShardsOverTheRanksOfAMachine) {
  const auto plan =
      plan_shard_groups(std::nullopt, {.rank = 1, .world_size = 4, .local_world_size = 2}, /*hybrid=*/true);
  EXPECT_THAT(plan.peers[0].shards, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(plan.peers[0].replicas, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

// Hybrid sharding shards within a machine, so all machines need the same number of ranks.
TEST(MeshPlanTest, RanksThatMachinesDoNotDivideAreAConfigError) {
  try {
    static_cast<void>(plan_shard_groups(std::nullopt, {.world_size = 4, .local_world_size = 3}, /*hybrid=*/true));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 ranks do not divide into shard groups of 3; expected a multiple of 3; "));
  }
}

}  // namespace
}  // namespace accel
