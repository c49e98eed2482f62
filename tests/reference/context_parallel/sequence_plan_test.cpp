#include "reference/context_parallel/sequence_plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SequencePlan any_plan() {
  const auto order = pick_from({SequenceOrder::kContiguous, SequenceOrder::kZigzag});
  const int ranks = pick(1, 9);
  return SequencePlan({.length = 2 * ranks * pick<std::int64_t>(0, 5), .num_ranks = ranks, .order = order});
}

TEST(SequencePlanTest, ZigzagPairsTheFirstChunksWithTheLast) {
  const SequencePlan plan({.length = 12, .num_ranks = 3, .order = SequenceOrder::kZigzag});
  EXPECT_THAT(plan.positions(0), ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(plan.positions(1), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(plan.positions(2), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(plan.gathered_indices(), ElementsAre(0, 1, 4, 5, 8, 9, 10, 11, 6, 7, 2, 3));
}

TEST(SequencePlanTest, EveryPositionIsOnOneRank) {
  expect_property(300, [] {
    const auto plan = any_plan();
    const auto all = plan.gathered_positions(), indices = plan.gathered_indices();
    RC_ASSERT(std::set(all.begin(), all.end()).size() == static_cast<std::size_t>(plan.length()));
    for (std::int64_t position = 0; position < plan.length(); ++position)
      RC_ASSERT(all.at(static_cast<std::size_t>(indices.at(static_cast<std::size_t>(position)))) == position);
    for (int rank = 0; rank < plan.num_ranks(); ++rank) {
      const auto positions = plan.positions(rank);
      RC_ASSERT(std::ssize(positions) == plan.local_length());
      RC_ASSERT(std::is_sorted(positions.begin(), positions.end()));
    }
  });
}

// Counts the pairs of positions that attended_chunks stands for.
std::int64_t num_attended(const SequencePlan& plan, int query_rank, int key_rank, bool is_causal) {
  const auto length = plan.chunk_length();
  std::int64_t count = 0;
  for (const auto& pair : attended_chunks(plan, query_rank, key_rank, is_causal))
    count += pair.is_diagonal ? length * (length + 1) / 2 : length * length;
  return count;
}

TEST(SequencePlanTest, AttendedChunksAreThoseOfTheMask) {
  expect_property(300, [] {
    const auto plan = any_plan();
    const bool is_causal = one_in(2);
    const int queries = pick(0, plan.num_ranks()), keys = pick(0, plan.num_ranks());
    std::int64_t expected = 0;
    for (const auto query : plan.positions(queries))
      for (const auto key : plan.positions(keys)) expected += !is_causal || key <= query;
    RC_ASSERT(num_attended(plan, queries, keys, is_causal) == expected);
  });
}

// A step of the ring takes as long as its slowest rank.
TEST(SequencePlanTest, ZigzagGivesRanksEqualWorkInEveryStepOfARing) {
  expect_property(100, [] {
    const int ranks = pick(1, 9);
    const SequencePlan plan(
        {.length = 2 * ranks * pick<std::int64_t>(1, 5), .num_ranks = ranks, .order = SequenceOrder::kZigzag});
    for (int step = 0; step < ranks; ++step) {
      const auto work = num_attended(plan, 0, (ranks - step) % ranks, /*is_causal=*/true);
      for (int rank = 1; rank < ranks; ++rank)
        RC_ASSERT(num_attended(plan, rank, (rank + ranks - step) % ranks, /*is_causal=*/true) == work);
    }
  });
}

TEST(SequencePlanTest, AQuerysRowInItsTileIsThatOfItsPosition) {
  expect_property(300, [] {
    const auto plan = any_plan();
    const auto positions = plan.positions(pick(0, plan.num_ranks()));
    const auto length = pick<std::int64_t>(1, 9);
    const auto tiles = plan_query_tiles(positions, length);
    RC_ASSERT(tiles.rows.size() == positions.size());
    RC_ASSERT(std::ssize(tiles.begins) <= std::ssize(positions));
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto begin = tiles.begins.at(static_cast<std::size_t>(tiles.rows[i] / length));
      RC_ASSERT(begin % length == 0);
      RC_ASSERT(begin + tiles.rows[i] % length == positions[i]);
    }
  });
}

TEST(SequencePlanTest, LengthsThatDoNotDivideAreErrors) {
  const auto message = [](SequenceSizes sizes) {
    return message_of<ArgumentError>([&] { (void)SequencePlan(sizes); });
  };
  EXPECT_THAT(message({.length = 10, .num_ranks = 4}),
              HasSubstr("10 positions does not divide over 4 context-parallel ranks; expected a multiple of 4"));
  EXPECT_THAT(message({.length = 12, .num_ranks = 4, .order = SequenceOrder::kZigzag}),
              HasSubstr("over 4 context-parallel ranks in zigzag order; expected a multiple of 8"));
  EXPECT_THAT(message({.length = 12, .num_ranks = 0}), HasSubstr("over 0 ranks; expected at least 1"));
  const SequencePlan plan({.length = 12, .num_ranks = 2});
  EXPECT_THAT(message_of<ArgumentError>([&] { (void)plan.positions(2); }), HasSubstr("rank 2"));
}

}  // namespace
}  // namespace accel::testing
