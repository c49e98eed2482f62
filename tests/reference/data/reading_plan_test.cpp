// How many threads read a stream: those that have a part of it to themselves.
#include "reference/data/reading_plan.hpp"

#include <gtest/gtest.h>

#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

DataSource stream_of(std::int64_t num_parts) { return {.is_stream = true, .num_shards = num_parts}; }

TEST(ReadingPlanTest, SamplesWithIndicesAreReadByAsManyWorkersAsRequested) {
  EXPECT_EQ(ReadingPlan{}.num_readers({.size = 3}, /*num_workers=*/8, /*rank=*/0), 8);
}

TEST(ReadingPlanTest, AStreamIsReadByOneWorkerPerPart) {
  const ReadingPlan alone;
  for (const auto& [num_parts, num_readers] : {std::pair(0, 1), {1, 1}, {2, 2}, {3, 3}, {5, 3}})
    EXPECT_EQ(alone.num_readers(stream_of(num_parts), /*num_workers=*/3, /*rank=*/0), num_readers) << num_parts;
  EXPECT_EQ(alone.num_readers(stream_of(5), /*num_workers=*/0, /*rank=*/0), 0);
  const ReadingPlan dispatched{.is_dispatched = true, .num_ranks = 3};
  EXPECT_EQ(dispatched.num_readers(stream_of(5), /*num_workers=*/8, /*rank=*/0), 5);
}

TEST(ReadingPlanTest, RanksWithPartsOfTheirOwnHaveAWorkerForEach) {
  const ReadingPlan plan{.reads_own_parts = true, .num_ranks = 3};
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(plan.num_readers(stream_of(5), /*num_workers=*/8, rank), rank == 2 ? 1 : 2);
}

// Otherwise the order would depend on the threads.
TEST(ReadingPlanTest, AStreamWhoseOrderAllShareIsReadByOneWorker) {
  const ReadingPlan every_rank_reads_all{.num_ranks = 3}, own_parts{.reads_own_parts = true, .num_ranks = 3};
  EXPECT_EQ(every_rank_reads_all.num_readers(stream_of(6), /*num_workers=*/4, /*rank=*/0), 1);
  auto with_generator = stream_of(6);
  with_generator.generator = make_generator(1);
  for (const auto& plan : {ReadingPlan{}, own_parts})
    EXPECT_EQ(plan.num_readers(with_generator, /*num_workers=*/4, /*rank=*/0), 1);
}

}  // namespace
}  // namespace accel
