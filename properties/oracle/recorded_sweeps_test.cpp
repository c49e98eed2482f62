// The faults of Accelerate's shards, recorded from sweeps over their options by faults.py, next to the same sweeps
// over this library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "properties/gen/accelerate_shards.hpp"
#include "properties/oracle/recorded_faults.hpp"

namespace accel::testing::recorded_sweeps_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A rank without peers, which is enough for loaders in order because they do not communicate.
class LoneRank {
 public:
  LoneRank(int rank, int num_ranks) {
    context_->rank = rank;
    context_->world_size = num_ranks;
  }
  template <typename Dataset>
  auto shard(Dataset dataset, DataLoaderOptions options, DataLoaderConfiguration config) {
    return DataLoaderShard(DataLoader(std::move(dataset), std::move(options)),
                           {.context = context_.get(),
                            .data_parallel = {.size = context_->world_size, .rank = context_->rank},
                            .config = std::move(config)});
  }

 private:
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

// One configuration of a sweep.
struct Shard {
  std::int64_t length, batch_size;
  int num_ranks;
  bool split;
};

// Visits every shard of the sweep. `splits` returns true if a batch of that size is split over that many ranks.
// Visits every configuration; the ranges are those of faults.py, so that the counts can be compared.
template <typename Splits, typename Visit>
void sweep(const Splits& splits, const Visit& visit) {
  for (std::int64_t length = 0; length < 26; ++length) {
    for (std::int64_t batch_size = 1; batch_size <= 6; ++batch_size) {
      for (int num_ranks = 1; num_ranks <= 6; ++num_ranks) {
        for (const bool split : {false, true}) {
          if (!split || splits(batch_size, num_ranks)) visit(Shard{length, batch_size, num_ranks, split});
        }
      }
    }
  }
}

bool divides(std::int64_t batch_size, int num_ranks) { return batch_size % num_ranks == 0; }

// Accelerate's check lets a batch of one sample pass, although it cannot be split.
bool divides_or_is_one(std::int64_t batch_size, int num_ranks) {
  return batch_size == 1 || divides(batch_size, num_ranks);
}

template <typename Visit>
void sweep_streams(const Visit& visit) {
  sweep(divides_or_is_one, [&](const Shard& shard) {
    for (const bool drop_last : {false, true}) visit(shard, drop_last);
  });
}

auto stream_shard(LoneRank& lone, const Shard& shard, bool drop_last) {
  return lone.shard(SizedStream{shard.length}, {.batch_size = shard.batch_size, .drop_last = drop_last},
                    {.split_batches = shard.split, .dispatch_batches = false});
}

// Accelerate checks the batch size only if it is not 1, and then gives some ranks empty shards. Here it is an
// error.
TEST(RecordedSweepsTest, R7AccelerateSplitsSingleSamplesIntoNothing) {
  const auto theirs = recorded("R7_R9_sweep_of_iterable_shards").at(0);
  EXPECT_EQ(theirs["split_of_batch_size_1"], 125);
  EXPECT_EQ(theirs["empty"], 125);
  EXPECT_FALSE(theirs.contains("empty_elsewhere"));
  int refused = 0;
  sweep_streams([&](const Shard& shard, bool drop_last) {
    if (!shard.split || divides(shard.batch_size, shard.num_ranks) || shard.length == 0 || drop_last) return;
    try {
      LoneRank lone(0, shard.num_ranks);
      const auto loader = stream_shard(lone, shard, drop_last);
    } catch (const ArgumentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("split_batches: a batch of 1 is not divisible"));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 125);
}

// The number of wrong lengths is Accelerate's. Ours must be 0 over the same 5,200 configurations.
TEST(RecordedSweepsTest, R8AccelerateMiscountsTheBatchesOfAShard) {
  const auto theirs = recorded("R8_sweep_of_batch_sampler_shards").at(0);
  EXPECT_EQ(theirs, Json({{"configurations", 5200}, {"wrong_lengths", 245}}));  // contents are never wrong
  int configurations = 0, wrong_lengths = 0, wrong_contents = 0;
  sweep(divides, [&](const Shard& shard) {
    for (const int flags : {0, 1, 2, 3}) {
      const bool even = (flags & 1) != 0, drop_last = (flags & 2) != 0;
      ++configurations;
      for (int rank = 0; rank < shard.num_ranks; ++rank) {
        LoneRank lone(rank, shard.num_ranks);
        auto loader = lone.shard(numbers(shard.length), {.batch_size = shard.batch_size, .drop_last = drop_last},
                                 {.split_batches = shard.split, .even_batches = even});
        const auto batches = batches_of(loader);
        wrong_lengths += loader.size() != static_cast<std::int64_t>(batches.size());
        wrong_contents += batches != accelerate_shards({shard.length, shard.batch_size, shard.num_ranks, rank,
                                                        shard.split, even, drop_last});
      }
    }
  });
  EXPECT_EQ(configurations, 5200);
  EXPECT_EQ(wrong_lengths, 0);
  EXPECT_EQ(wrong_contents, 0);
}

// Streams have a known number of samples here, so that lengths can be counted.
TEST(RecordedSweepsTest, R9AccelerateMiscountsTheBatchesOfASplitStream) {
  const auto theirs = recorded("R7_R9_sweep_of_iterable_shards").at(0);
  EXPECT_EQ(theirs["configurations"], 2860);
  EXPECT_EQ(theirs["wrong_lengths"], 1910);
  EXPECT_FALSE(theirs.contains("wrong_lengths_without_split"));
  int read = 0, wrong_lengths = 0, wrong_contents = 0;
  sweep_streams([&](const Shard& shard, bool drop_last) {
    if (shard.split && !divides(shard.batch_size, shard.num_ranks)) return;  // an error, see R7
    ++read;
    for (int rank = 0; rank < shard.num_ranks; ++rank) {
      LoneRank lone(rank, shard.num_ranks);
      auto loader = stream_shard(lone, shard, drop_last);
      const auto batches = batches_of(loader);
      wrong_lengths += loader.size() != static_cast<std::int64_t>(batches.size());
      wrong_contents += batches != accelerate_shards({shard.length, shard.batch_size, shard.num_ranks, rank,
                                                      shard.split, /*even_batches=*/true, drop_last});
    }
  });
  EXPECT_EQ(read, 2860 - 2 * 26 * 5);
  EXPECT_EQ(wrong_lengths, 0);
  EXPECT_EQ(wrong_contents, 0);
}

}  // namespace
}  // namespace accel::testing::recorded_sweeps_test
