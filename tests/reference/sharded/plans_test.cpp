// Tests of the plans of sharding, which are pure arithmetic: which element lies on which rank (FlatPlan), which
// parameters are gathered together (UnitPlan), and how much memory that takes (MemoryPlan).
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "reference/core/errors.hpp"
#include "reference/sharded/memory_plan.hpp"
#include "reference/sharded/unit_plan.hpp"
#include "tests/support/property.hpp"

namespace accel::sharded {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 11 elements over 4 shards are padded to 12. A scalar (one element) and an empty parameter are included.
TEST(FlatPlanTest, ParametersFollowOneAnotherAndShardsAreEqual) {
  const FlatPlan plan({{"a", {3, 2}}, {"b", {}}, {"c", {0, 4}}, {"d", {4}}}, 4);
  EXPECT_EQ(plan.numel(), 11);
  EXPECT_EQ(plan.padded_numel(), 12);
  EXPECT_EQ(plan.part(0, 1), (ElementRange{3, 6}));
  EXPECT_EQ(plan.part(1, 2), (ElementRange{0, 1}));
  EXPECT_EQ(plan.part(3, 3), (ElementRange{2, 4}));
  EXPECT_EQ(plan.part_in_shard(3, 3), (ElementRange{0, 2}));
  EXPECT_EQ(plan.part(2, 0).size(), 0);
}

// Kernels read several elements at once, which is faster from aligned addresses.
TEST(FlatPlanTest, AlignedParametersBeginAtMultiples) {
  const FlatPlan plan({{"a", {3}}, {"b", {5}}, {"c", {1}}}, 2, /*alignment=*/4);
  EXPECT_EQ(plan.range(1), (ElementRange{4, 9}));
  EXPECT_EQ(plan.range(2), (ElementRange{12, 13}));
  EXPECT_EQ(plan.padded_numel(), 14);
}

// For any shapes and any number of ranks, each element lies in exactly one shard, at one place.
TEST(FlatPlanLaws, PartsOfAllShardsAreTheParameter) {
  testing::expect_property(300, [] {
    const auto sizes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 9));
    const auto num_shards = *rc::gen::inRange(1, 17), alignment = *rc::gen::element(1, 4, 8);
    std::vector<ParameterShape> shapes;
    for (const auto size : sizes) shapes.push_back({"p", {size}});
    const FlatPlan plan(shapes, num_shards, alignment);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::int64_t next = 0;
      for (int shard = 0; shard < num_shards; ++shard) {
        const auto part = plan.part(i, shard), place = plan.part_in_shard(i, shard);
        RC_ASSERT(part.size() == place.size());
        if (part.size() == 0) continue;
        RC_ASSERT(part.begin == next);
        RC_ASSERT(plan.shard(shard).begin + place.begin == plan.range(i).begin + part.begin);
        next = part.end;
      }
      RC_ASSERT(next == shapes[i].numel());
    }
  });
}

ModuleDescription module(std::string name, std::string class_name, std::vector<std::size_t> parameters,
                         std::vector<ModuleDescription> children = {}) {
  return {.name = std::move(name),
          .class_name = std::move(class_name),
          .parameters = std::move(parameters),
          .children = std::move(children)};
}

// A model in which two blocks share a parameter (0).
ModelDescription small_model() {
  ModelDescription model;
  for (const int size : {6, 4, 10, 1})
    model.parameters.push_back({.shape = {std::to_string(model.parameters.size()), {size}}, .dtype = "float"});
  model.root = module("", "Net", {3},
                      {module("left", "net::BlockImpl", {0}, {module("left.inner", "Linear", {1})}),
                       module("right", "net::BlockImpl", {0, 2})});
  return model;
}

// A line for each unit: its name and the numbers of its parameters.
std::vector<std::string> contents(const ModelPlan& plan) {
  std::vector<std::string> units;
  for (const auto& unit : plan.units) {
    auto text = unit.name + ":";
    for (const auto& flat : unit.flats) {
      for (const auto parameter : flat.parameters) text += " " + std::to_string(parameter);
    }
    units.push_back(text);
  }
  return units;
}

// If it belonged to one block, the other would compute after it was freed.
TEST(UnitPlanTest, ASharedParameterBelongsToTheUnitAroundAllItsUses) {
  ShardingOptions options;
  options.wrap = {.kind = WrapPolicy::Kind::kByClass, .classes = {"Block"}};
  EXPECT_THAT(contents(plan_units(small_model(), options, 2)), ElementsAre(": 3 0", "left: 1", "right: 2"));
}

// An ignored module belongs to no unit and is not sharded.
TEST(UnitPlanTest, ModulesAreWrappedBySizeByNameOrNotAtAll) {
  ShardingOptions options;
  EXPECT_THAT(contents(plan_units(small_model(), options, 2)), ElementsAre(": 3 0 1 2"));
  options.wrap.modules = {"left\\..*"};
  options.wrap.ignored = {"right"};
  const auto plan = plan_units(small_model(), options, 2);
  EXPECT_THAT(contents(plan), ElementsAre(": 3", "left.inner: 1"));
  EXPECT_THAT(plan.ignored, ElementsAre(0, 2));
  options.wrap = {.kind = WrapPolicy::Kind::kBySize, .min_num_params = 10};
  EXPECT_THAT(contents(plan_units(small_model(), options, 2)), ElementsAre(": 3 0", "left: 1", "right: 2"));
}

TEST(UnitPlanTest, TheChildrenOfAnIgnoredModuleAreIgnored) {
  ShardingOptions options;
  options.wrap.modules = {"left\\.inner"};
  options.wrap.ignored = {"left"};
  const auto plan = plan_units(small_model(), options, 2);
  EXPECT_THAT(contents(plan), ElementsAre(": 3 2"));
  EXPECT_THAT(plan.ignored, ElementsAre(0, 1));
}

// Two elements remain in "outer" when "outer.inner" is a unit, which are too few for another one.
TEST(UnitPlanTest, ElementsInUnitsDoNotCountForTheModuleAroundThem) {
  ModelDescription model;
  for (const int size : {2, 10, 1})
    model.parameters.push_back({.shape = {std::to_string(model.parameters.size()), {size}}, .dtype = "float"});
  model.root = module("", "Net", {2}, {module("outer", "Block", {0}, {module("outer.inner", "Linear", {1})})});
  ShardingOptions options;
  options.wrap = {.kind = WrapPolicy::Kind::kBySize, .min_num_params = 10};
  EXPECT_THAT(contents(plan_units(model, options, 2)), ElementsAre(": 2 0", "outer.inner: 1"));
}

// A Sequential and programs with a list call elements through accel::call; how a block calls its parts is unknown.
TEST(UnitPlanTest, ElementsOfContainersAreUnitsUnlessTheyAreSmall) {
  ModelDescription model;
  for (const int size : {10, 10, 2, 10, 10, 10})
    model.parameters.push_back({.shape = {std::to_string(model.parameters.size()), {size}}, .dtype = "float"});
  auto list = module("list", "ModuleList", {},
                     {module("list.0", "net::BlockImpl", {0}, {module("list.0.inner", "Linear", {1})}),
                      module("list.1", "net::BlockImpl", {2})});
  list.is_container = true;
  auto sequence = module("seq", "torch::nn::SequentialImpl", {},
                         {module("seq.0", "Linear", {3}),
                          module("seq.1", "torch::nn::SequentialImpl", {}, {module("seq.1.0", "Linear", {4})})});
  model.root = module("", "Net", {}, {list, sequence, module("head", "Linear", {5})});
  ShardingOptions options{.prefetch = Prefetch::kBackwardPre};
  options.wrap = {.kind = WrapPolicy::Kind::kElements, .min_num_params = 3};
  const auto plan = plan_units(model, options, 2);
  EXPECT_THAT(contents(plan), ElementsAre(": 2 5", "list.0: 0 1", "seq.0: 3", "seq.1.0: 4"));
  auto whole = options;
  whole.wrap.leaves = {"ModuleList"};
  EXPECT_THAT(contents(plan_units(model, whole, 2)), ElementsAre(": 0 1 2 5", "seq.0: 3", "seq.1.0: 4"));
  // The root has 12 elements, list.0 and seq.0 have 30.
  options.max_live_numel = 42;
  EXPECT_TRUE(gathers_ahead(plan, options));
  options.max_live_numel = 41;
  EXPECT_FALSE(gathers_ahead(plan, options));
}

// The block is full while its layers compute, one of which is gathered before its turn.
TEST(UnitPlanTest, TheLimitOfLiveElementsCountsTheUnitsAround) {
  ModelDescription model;
  for (int i = 0; i < 3; ++i) model.parameters.push_back({.shape = {std::to_string(i), {10}}, .dtype = "float"});
  auto list =
      module("list", "ModuleList", {},
             {module("list.0", "net::BlockImpl", {0},
                     {module("list.0.mlp", "torch::nn::SequentialImpl", {},
                             {module("list.0.mlp.0", "Linear", {1}), module("list.0.mlp.1", "Linear", {2})})})});
  list.is_container = true;
  model.root = module("", "Net", {}, {list});
  ShardingOptions options{.prefetch = Prefetch::kBackwardPre, .max_live_numel = 30};
  options.wrap = {.kind = WrapPolicy::Kind::kElements};
  const auto plan = plan_units(model, options, 2);
  EXPECT_THAT(contents(plan), ElementsAre(":", "list.0: 0", "list.0.mlp.0: 1", "list.0.mlp.1: 2"));
  EXPECT_TRUE(gathers_ahead(plan, options));
  options.max_live_numel = 29;
  EXPECT_FALSE(gathers_ahead(plan, options));
}

// A mistyped class name would leave the model in one unit, and training would run out of memory much later.
TEST(UnitPlanTest, APolicyThatMatchesNoModuleIsAConfigErrorThatNamesAllMisfits) {
  ShardingOptions options;
  options.wrap = {.kind = WrapPolicy::Kind::kByClass, .classes = {"Layer"}, .modules = {"middle"}};
  try {
    plan_units(small_model(), options, 2);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Layer"));
    EXPECT_THAT(error.what(), HasSubstr("middle"));
  }
}

// The numbers of the ZeRO paper for float32 parameters and gradients with Adam: 16 bytes for each element in total.
TEST(MemoryPlanTest, MemoryFallsWithTheNumberOfRanksAsEachStagePromises) {
  ModelDescription model;
  model.parameters = {{.shape = {"w", {64'000}}, .dtype = "float"}};
  model.root = module("", "Net", {0});
  for (const int ranks : {2, 8, 64}) {
    ShardingOptions stage3, stage2;
    stage2.parameters = stage2.reshard_after_forward = false;
    const auto of = [&](const ShardingOptions& options) {
      return plan_memory(plan_units(model, options, ranks), model, options, /*state_bytes_per_element=*/8);
    };
    EXPECT_EQ(of(stage3).parameters, 4 * 64'000 / ranks);
    EXPECT_EQ(of(stage2).parameters, 4 * 64'000);
    for (const auto& memory : {of(stage2), of(stage3)}) {
      EXPECT_EQ(memory.gradients, 4 * 64'000 / ranks);
      EXPECT_EQ(memory.optimizer, 8 * 64'000 / ranks);
    }
    EXPECT_EQ(of(stage3).gathered, 4 * 64'000);
  }
}

}  // namespace
}  // namespace accel::sharded
