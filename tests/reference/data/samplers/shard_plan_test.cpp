// The shard plan: which rank reads which sample in which step. A pure function, tested here with tables of
// Accelerate's results; properties/sharding_laws.cpp compares it with a transcription of Accelerate's loop.
#include "reference/data/samplers/shard_plan.hpp"

#include <gmock/gmock.h>

#include <string>
#include <tuple>

#include "reference/core/errors.hpp"
#include "tests/reference/data/passes.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

using testing::Batches;

enum class Tail { kEven, kNotEven, kDropLast };

ShardPlanOptions options_of(std::int64_t num_samples, std::int64_t batch_size, int num_ranks, Tail tail,
                            bool split = false) {
  return {.num_samples = num_samples,
          .batch_size = batch_size,
          .num_ranks = num_ranks,
          .split_batches = split,
          .even_batches = tail != Tail::kNotEven,
          .drop_last = tail == Tail::kDropLast};
}

// The batches of all ranks.
std::vector<Batches> shards(const ShardPlanOptions& options) {
  const auto plan = plan_shards(options);
  std::vector<Batches> ranks;
  for (int rank = 0; rank < options.num_ranks; ++rank) ranks.push_back(plan.indices(rank));
  return ranks;
}

// A case of the table below.
struct Row {
  std::string name;
  ShardPlanOptions options;
  std::vector<Batches> ranks;
};

// The batches that Accelerate's BatchSamplerShard gave for each of these when it was run.
const std::vector<Row> kAcceleratesShards = {
    {"L10B2N3Even", options_of(10, 2, 3, Tail::kEven), {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {0, 1}}}},
    {"L10B2N3NotEven", options_of(10, 2, 3, Tail::kNotEven), {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}}},
    {"L10B2N3DropLast", options_of(10, 2, 3, Tail::kDropLast), {{{0, 1}}, {{2, 3}}, {{4, 5}}}},
    {"L10B4N2Even", options_of(10, 4, 2, Tail::kEven), {{{0, 1, 2, 3}, {8, 9, 0, 1}}, {{4, 5, 6, 7}, {2, 3, 4, 5}}}},
    {"L10B4N2NotEven", options_of(10, 4, 2, Tail::kNotEven), {{{0, 1, 2, 3}, {8, 9}}, {{4, 5, 6, 7}}}},
    {"L9B2N4Even",
     options_of(9, 2, 4, Tail::kEven),
     {{{0, 1}, {8, 0}}, {{2, 3}, {1, 2}}, {{4, 5}, {3, 4}}, {{6, 7}, {5, 6}}}},
    {"L3B4N2Even", options_of(3, 4, 2, Tail::kEven), {{{0, 1, 2, 0}}, {{1, 2, 0, 1}}}},
    {"L3B2N4Even", options_of(3, 2, 4, Tail::kEven), {{{0, 1}}, {{2, 0}}, {{1, 2}}, {{0, 1}}}},
    {"L11B4N2SplitEven",
     options_of(11, 4, 2, Tail::kEven, true),
     {{{0, 1}, {4, 5}, {8, 9}}, {{2, 3}, {6, 7}, {10, 0}}}},
    {"L11B4N2SplitNotEven",
     options_of(11, 4, 2, Tail::kNotEven, true),
     {{{0, 1}, {4, 5}, {8, 9}}, {{2, 3}, {6, 7}, {10}}}},
    {"L9B4N2SplitNotEven", options_of(9, 4, 2, Tail::kNotEven, true), {{{0, 1}, {4, 5}, {8}}, {{2, 3}, {6, 7}}}},
    {"L1B4N2SplitEven", options_of(1, 4, 2, Tail::kEven, true), {{{0, 0}}, {{0, 0}}}},
    {"L11B4N2SplitDropLast", options_of(11, 4, 2, Tail::kDropLast, true), {{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}},
};

class AcceleratesShardsTest : public ::testing::TestWithParam<Row> {};

TEST_P(AcceleratesShardsTest, EveryRankReadsAcceleratesBatches) {
  EXPECT_EQ(shards(GetParam().options), GetParam().ranks);
}

// Loaders and gather_for_metrics use these counts without enumerating batches.
TEST_P(AcceleratesShardsTest, TheNumbersOfBatchesAndDuplicatesAreExact) {
  const auto plan = plan_shards(GetParam().options);
  std::int64_t issued = 0;
  for (std::size_t rank = 0; rank < GetParam().ranks.size(); ++rank) {
    EXPECT_EQ(plan.num_batches(static_cast<int>(rank)), static_cast<std::int64_t>(GetParam().ranks[rank].size()));
    for (const auto& batch : GetParam().ranks[rank]) issued += static_cast<std::int64_t>(batch.size());
  }
  EXPECT_EQ(plan.num_duplicates(), std::max<std::int64_t>(issued - GetParam().options.num_samples, 0));
}

INSTANTIATE_TEST_SUITE_P(Tables, AcceleratesShardsTest, ::testing::ValuesIn(kAcceleratesShards),
                         [](const auto& row) { return row.param.name; });

// The first samples of the epoch are read a second time.
TEST(ShardPlanTest, ShortTailIsFilledFromTheStart) {
  const auto plan = plan_shards({.num_samples = 5, .batch_size = 2, .num_ranks = 2});
  EXPECT_THAT(plan.indices(/*rank=*/1), ElementsAre(ElementsAre(2, 3), ElementsAre(1, 2)));
}

// Accelerate does not shard with one process, so nothing is padded.
TEST(ShardPlanTest, ASingleRankKeepsItsShortBatch) {
  for (const bool split : {false, true}) {
    EXPECT_EQ(shards(options_of(5, 2, 1, Tail::kEven, split)), std::vector<Batches>({{{0, 1}, {2, 3}, {4}}})) << split;
  }
}

TEST(ShardPlanTest, NoSamplesGiveNoBatches) {
  for (const auto tail : {Tail::kEven, Tail::kNotEven, Tail::kDropLast}) {
    EXPECT_EQ(shards(options_of(0, 2, 3, tail)), std::vector<Batches>(3));
    EXPECT_EQ(plan_shards(options_of(0, 2, 3, tail)).num_duplicates(), 0);
    EXPECT_EQ(plan_shards(options_of(0, 2, 3, tail)).remainder(), 0);
  }
}

// For a batch size of 1 Accelerate passes its check and yields nothing.
TEST(ShardPlanTest, ABatchThatCannotBeSplitEvenlyIsAnArgumentError) {
  EXPECT_THROW(plan_shards(options_of(10, 3, 2, Tail::kEven, true)), ArgumentError);
  EXPECT_THROW(plan_shards(options_of(10, 1, 2, Tail::kEven, true)), ArgumentError) << "Accelerate yields nothing here";
  EXPECT_NO_THROW(plan_shards(options_of(10, 3, 2, Tail::kEven)));
  EXPECT_NO_THROW(plan_shards(options_of(10, 1, 1, Tail::kEven, true)));
}

TEST(ShardPlanTest, NumbersThatAreNotPositiveAreArgumentErrors) {
  EXPECT_THROW(plan_shards(options_of(10, 0, 2, Tail::kEven)), ArgumentError);
  EXPECT_THROW(plan_shards(options_of(10, 2, 0, Tail::kEven)), ArgumentError);
  EXPECT_THROW(plan_shards(options_of(-1, 2, 2, Tail::kEven)), ArgumentError);
}

// A step beyond the plan would silently read other samples.
TEST(ShardPlanTest, ABatchBeyondThePlanIsAnArgumentError) {
  const auto plan = plan_shards(options_of(10, 2, 3, Tail::kNotEven));
  EXPECT_NO_THROW(std::ignore = plan.batch(/*rank=*/1, /*step=*/1));
  EXPECT_THROW(std::ignore = plan.batch(/*rank=*/2, /*step=*/1), ArgumentError);
  EXPECT_THROW(std::ignore = plan.batch(/*rank=*/0, /*step=*/-1), ArgumentError);
  EXPECT_THROW(std::ignore = plan.batch(/*rank=*/3, /*step=*/0), ArgumentError);
}

// gather_for_metrics uses it to remove the duplicates; 0 means that the last step is full.
TEST(ShardPlanTest, TheRemainderCountsTheLastStepWithoutDuplicates) {
  EXPECT_EQ(plan_shards(options_of(10, 4, 2, Tail::kEven)).remainder(), 2);
  EXPECT_EQ(plan_shards(options_of(10, 4, 2, Tail::kNotEven)).remainder(), 2);
  EXPECT_EQ(plan_shards(options_of(16, 4, 2, Tail::kEven)).remainder(), 0);
  EXPECT_EQ(plan_shards(options_of(11, 4, 2, Tail::kEven, true)).remainder(), 3);
  EXPECT_EQ(plan_shards(options_of(11, 4, 2, Tail::kDropLast)).remainder(), 0);
}

// The total batch size is what learning rates are scaled by.
TEST(ShardPlanTest, AStepHoldsABatchPerRankUnlessBatchesAreSplit) {
  EXPECT_EQ(plan_shards(options_of(10, 4, 2, Tail::kEven)).total_batch_size(), 8);
  EXPECT_EQ(plan_shards(options_of(10, 4, 2, Tail::kEven, true)).total_batch_size(), 4);
}

// A run that is resumed on another number of ranks starts after `num_read` samples and pads from the start of the
// rest.
TEST(ShardPlanTest, APlanMayStartWithinTheOrder) {
  const auto plan = plan_shards({.num_samples = 11, .batch_size = 2, .num_ranks = 3, .num_read = 4});
  EXPECT_THAT(plan.indices(0), ElementsAre(ElementsAre(4, 5), ElementsAre(10, 0)));
  EXPECT_THAT(plan.indices(2), ElementsAre(ElementsAre(8, 9), ElementsAre(3, 4)));
  EXPECT_EQ(plan.remainder(), 1);
  EXPECT_EQ(plan.num_duplicates(), 5);
  EXPECT_EQ(plan_shards({.num_samples = 11, .batch_size = 2, .num_ranks = 3, .num_read = 12}).num_batches(0), 0);
}

// One rank normally leaves its last batch short. A mesh may want equal batches nevertheless.
TEST(ShardPlanTest, ASingleRankFillsItsLastBatchOnRequest) {
  EXPECT_THAT(plan_shards({.num_samples = 5, .batch_size = 4, .even_alone = true}).indices(0),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 0, 1, 2)));
}

}  // namespace
}  // namespace accel
