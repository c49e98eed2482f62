// Layouts of parameters: which elements each rank holds. A wrong range would save, load or step elements of another
// parameter.
#include "reference/mesh/parameter_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> elements_of(const std::vector<ElementRange>& ranges) {
  std::vector<std::int64_t> elements;
  for (const auto& range : ranges) {
    for (auto element = range.begin; element < range.end; ++element) elements.push_back(element);
  }
  return elements;
}

std::vector<std::int64_t> any_lengths() {
  std::vector<std::int64_t> lengths(*rc::gen::inRange(1, 5));
  for (auto& length : lengths) length = *rc::gen::inRange(0, 20);
  return lengths;
}

// Source: torch.chunk.
RC_GTEST_PROP(ParameterLayoutLaws, PartsOfALengthAreThoseOfChunk, ()) {
  const std::int64_t length = *rc::gen::inRange(0, 50);
  const int num_parts = *rc::gen::inRange(1, 9);
  std::int64_t next = 0;
  for (int index = 0; index < num_parts; ++index) {
    const auto part = part_of_length(length, {.index = index, .num_parts = num_parts});
    RC_ASSERT(part.begin == next);
    const auto longest = (length + num_parts - 1) / num_parts;
    RC_ASSERT(part.size() == std::min(longest, length - next));
    next = part.end;
  }
  RC_ASSERT(next == length);
}

RC_GTEST_PROP(ParameterLayoutLaws, PartsOfSectionsHoldEachElementOnce, ()) {
  const Shard shard{.dim = 0, .sections = any_lengths()};
  const int num_parts = *rc::gen::inRange(1, 9);
  std::vector<std::int64_t> seen;
  for (int index = 0; index < num_parts; ++index) {
    const PartIndex which{.index = index, .num_parts = num_parts};
    const auto own = elements_of(shard.ranges_of_part(which));
    RC_ASSERT(std::ssize(own) == shard.length_of_part(which));
    seen.insert(seen.end(), own.begin(), own.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<std::int64_t> all(shard.length());
  std::iota(all.begin(), all.end(), 0);
  RC_ASSERT(seen == all);
}

// Tensors of a flat buffer, with gaps between them: the parts of each are its elements, in order, and lie where the
// rank's shard has them.
RC_GTEST_PROP(ParameterLayoutLaws, FlatShardsHoldEachElementOnce, ()) {
  const auto lengths = any_lengths();
  const std::int64_t gap = *rc::gen::inRange(0, 4);
  const int num_ranks = *rc::gen::inRange(1, 9);
  const auto numel = std::accumulate(lengths.begin(), lengths.end(), gap * std::ssize(lengths));
  const auto shard_numel = (numel + num_ranks - 1) / num_ranks;
  std::int64_t begin = 0;
  for (const auto length : lengths) {
    const FlatShard flat{.range = {begin, begin + length}, .shard_numel = shard_numel};
    std::int64_t next = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto part = flat.part(rank), place = flat.part_in_shard(rank);
      RC_ASSERT(part.size() == place.size());
      if (part.size() == 0) continue;
      RC_ASSERT(part.begin == next);
      RC_ASSERT(rank * shard_numel + place.begin == begin + part.begin);
      RC_ASSERT(place.end <= shard_numel);
      next = part.end;
    }
    RC_ASSERT(next == length);
    begin += length + gap;
  }
}

TEST(ParameterLayoutTest, FsdpShardsWhatTheLayerLeaves) {
  const Shard by_layer{.dim = 0, .sections = {4, 4, 4}};
  const FlatShard by_fsdp{.range = {10, 58}, .shard_numel = 30};
  const ParameterLayout layout{.sizes = {12, 8},
                               .divisions = {{.axis = kTensorAxis, .placement = by_layer, .index = 1, .num_parts = 2},
                                             {.axis = kShardAxis, .placement = by_fsdp, .index = 0, .num_parts = 2}}};
  EXPECT_THAT(layout.sizes_after(0), ElementsAre(12, 8));
  EXPECT_THAT(layout.sizes_after(1), ElementsAre(6, 8));
  EXPECT_THAT(layout.part_sizes(), ElementsAre(20));
  EXPECT_EQ(layout.placement(kTensorAxis), Placement(by_layer));
  EXPECT_EQ(layout.placement(kShardAxis), Placement(by_fsdp));
  EXPECT_EQ(layout.placement(kExpertAxis), Placement(Replicate{}));
  EXPECT_TRUE(layout.is_sharded());
  EXPECT_EQ(layout.layer_part(), 1);
}

TEST(ParameterLayoutTest, AParameterWithoutDivisionsIsComplete) {
  const ParameterLayout layout{.sizes = {3}};
  EXPECT_TRUE(layout.is_complete());
  EXPECT_EQ(layout.layer_division(), nullptr);
  EXPECT_EQ(layout.layer_part(), ParameterLayout::kUndivided);
  EXPECT_FALSE(layout.is_sharded());
}

TEST(MeshAxesTest, AxesAreFoundByTheirNames) {
  for (std::size_t axis = 0; axis < kNumMeshAxes; ++axis) EXPECT_EQ(axis_named(mesh_axes()[axis].name), axis);
  try {
    (void)axis_named("tpp");
    FAIL() << "accepted";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("no axis 'tpp'"), HasSubstr("dp_replicate, dp_shard, cp")));
  }
}

// The names of options and variables repeat the axis's name.
TEST(MeshAxesTest, OptionsAndVariablesHaveTheNameOfTheirAxis) {
  for (const auto& axis : mesh_axes()) {
    const auto size_name = std::string(axis.name) + "_size";
    EXPECT_EQ(axis.size_name, size_name);
    std::string variable = "PARALLELISM_CONFIG_" + size_name;
    for (auto& letter : variable) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    EXPECT_EQ(axis.variable, variable);
  }
}

}  // namespace
}  // namespace accel
