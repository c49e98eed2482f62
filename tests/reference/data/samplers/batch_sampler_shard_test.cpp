// Sharding of a batch sampler among ranks, for batches of fixed and of varying sizes. Its batches come one at a
// time and without a length, so the shard must keep the first batches to fill up the last step.
#include "reference/data/samplers/batch_sampler_shard.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/data/passes.hpp"

using ::testing::HasSubstr;

namespace accel {
namespace {

using testing::Batches;

// A batch sampler with given batches, which may claim to know its sizes or not.
class ListedBatches : public BatchSampler {
 public:
  struct Claims {
    std::optional<std::int64_t> batch_size;
    bool drop_last = false, knows_size = true;
  };
  ListedBatches(Batches batches, Claims claims) : batches_(std::move(batches)), claims_(claims) {}
  [[nodiscard]] std::optional<std::int64_t> size() const override {
    return claims_.knows_size ? std::optional(static_cast<std::int64_t>(batches_.size())) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override { return claims_.batch_size; }
  [[nodiscard]] bool drop_last() const override { return claims_.drop_last; }
  void begin_pass() override { next_ = 0; }
  std::optional<std::vector<std::int64_t>> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }

 private:
  Batches batches_;
  Claims claims_;
  std::size_t next_ = 0;
};

// What the ranks read, and the remainder of the last step.
struct Shards {
  std::vector<Batches> ranks;
  std::int64_t last_remainder = 0;
};

Shards shards_of(const Batches& batches, ListedBatches::Claims claims, BatchSamplerShard::Options options) {
  Shards shards;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    BatchSamplerShard shard(std::make_shared<ListedBatches>(batches, claims), options, rank);
    for (int pass = 0; pass < 2; ++pass) {  // the second pass must equal the first one
      Batches read;
      shard.begin_pass();
      while (auto step = shard.next()) {
        read.push_back(step->indices);
        shards.last_remainder = step->remainder;
      }
      EXPECT_FALSE(shard.next().has_value());
      EXPECT_EQ(shard.size().value_or(read.size()), static_cast<std::int64_t>(read.size()));
      if (pass == 0) shards.ranks.push_back(read);
      EXPECT_EQ(shards.ranks.back(), read);
    }
  }
  return shards;
}

// Batches of varying sizes come, for example, from bucketing by length. They are dealt in turn.
TEST(BatchSamplerShardTest, VaryingBatchesAreDealtUnsplitAndTheFirstOnesFillUp) {
  const Batches batches{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10}, {11}};
  const auto even = shards_of(batches, {}, {.num_ranks = 3});
  EXPECT_EQ(even.ranks[0], Batches({{0, 1, 2}, {9, 10}}));
  EXPECT_EQ(even.ranks[1], Batches({{3, 4}, {11}}));
  EXPECT_EQ(even.ranks[2], Batches({{5, 6, 7, 8}, {0, 1, 2}}));
  EXPECT_EQ(even.last_remainder, 3);  // counts samples 9, 10 and 11
  const auto uneven = shards_of(batches, {}, {.num_ranks = 3, .even_batches = false});
  EXPECT_EQ(uneven.ranks[1], Batches({{3, 4}, {11}}));
  EXPECT_EQ(uneven.ranks[2], Batches({{5, 6, 7, 8}}));
}

// With five ranks and two batches the first batches are repeated several times.
TEST(BatchSamplerShardTest, FewerBatchesThanRanksAreRepeated) {
  const auto shards = shards_of({{4}, {5, 6}}, {}, {.num_ranks = 5});
  EXPECT_EQ(shards.ranks[2], Batches({{4}}));
  EXPECT_EQ(shards.ranks[3], Batches({{5, 6}}));
  EXPECT_EQ(shards.ranks[4], Batches({{4}}));
}

TEST(BatchSamplerShardTest, AShortLastBatchIsFilledFromTheFirstOnes) {
  const auto shards = shards_of({{0, 1}, {2, 3}, {4}}, {.batch_size = 2}, {.num_ranks = 2});
  EXPECT_EQ(shards.ranks[0], Batches({{0, 1}, {4, 0}}));
  EXPECT_EQ(shards.ranks[1], Batches({{2, 3}, {1, 2}}));
  // Sample 4 is the only new one in the last step.
  EXPECT_EQ(shards.last_remainder, 1);
}

// A resumed pass skips the first batches, but they still fill up the last step.
TEST(BatchSamplerShardTest, SkippedBatchesFillUpTheLastStep) {
  const Batches batches{{0, 1}, {2, 3}, {4}}, last{{4, 0}, {1, 2}};
  for (const bool draws_at_once : {false, true}) {
    for (int rank = 0; rank < 2; ++rank) {
      BatchSamplerShard shard(std::make_shared<ListedBatches>(batches, ListedBatches::Claims{.batch_size = 2}),
                              {.num_ranks = 2}, rank);
      shard.begin_pass(/*num_read=*/2, draws_at_once);
      EXPECT_EQ(shard.next().value().indices, last[rank]);
    }
  }
}

// A pass that starts after any step continues like one that read it.
TEST(BatchSamplerShardTest, APassMayStartAfterAnyStep) {
  const Batches batches{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12}};
  for (const bool splits : {false, true}) {
    for (int rank = 0; rank < 2; ++rank) {
      BatchSamplerShard shard(std::make_shared<ListedBatches>(batches, ListedBatches::Claims{.batch_size = 2}),
                              {.num_ranks = 2, .split_batches = splits}, rank);
      Batches all;
      shard.begin_pass();
      while (auto step = shard.next()) all.push_back(step->indices);
      for (std::size_t start = 0; start < all.size(); ++start) {
        for (const bool draws_at_once : {false, true}) {
          Batches read;
          shard.begin_pass(static_cast<std::int64_t>(start) * shard.units_per_step(), draws_at_once);
          while (auto step = shard.next()) read.push_back(step->indices);
          EXPECT_EQ(read, Batches(all.begin() + static_cast<std::ptrdiff_t>(start), all.end())) << start;
        }
      }
    }
  }
}

// Its place is that of the loader.
TEST(BatchSamplerShardTest, ASamplerWithoutAGeneratorHasAState) {
  ListedBatches sampler({{0}, {1}}, {.batch_size = 1});
  sampler.load_state_dict(sampler.state_dict());
  ListedBatches other({{0}}, {.batch_size = 1});
  EXPECT_THROW(other.load_state_dict(sampler.state_dict()), ArgumentError);
}

// With split_batches the sampler's batch is the global one.
TEST(BatchSamplerShardTest, SlicesOfABatchGoToTheRanks) {
  const auto shards = shards_of({{0, 1, 2, 3}, {4, 5, 6}}, {.batch_size = 4}, {.num_ranks = 2, .split_batches = true});
  EXPECT_EQ(shards.ranks[0], Batches({{0, 1}, {4, 5}}));
  EXPECT_EQ(shards.ranks[1], Batches({{2, 3}, {6, 0}}));
  EXPECT_EQ(shards.last_remainder, 3);
  const auto uneven = shards_of({{0, 1, 2, 3}, {4, 5}}, {.batch_size = 4},
                                {.num_ranks = 2, .split_batches = true, .even_batches = false});
  EXPECT_EQ(uneven.ranks[1], Batches({{2, 3}}));
}

// The third batch is complete, but the second rank would have none.
TEST(BatchSamplerShardTest, DropLastGivesNoStepThatSomeRanksMiss) {
  const auto shards = shards_of({{0, 1}, {2, 3}, {4, 5}}, {.batch_size = 2, .drop_last = true}, {.num_ranks = 2});
  EXPECT_EQ(shards.ranks[0], Batches({{0, 1}}));
  EXPECT_EQ(shards.ranks[1], Batches({{2, 3}}));
}

TEST(BatchSamplerShardTest, NoBatchesGiveNoBatches) {
  EXPECT_EQ(shards_of({}, {.knows_size = false}, {.num_ranks = 2}).ranks[1], Batches());
}

// A wrong size would make ranks disagree on the number of steps, which shows as a hang much later.
TEST(BatchSamplerShardTest, ASamplerThatContradictsItsClaimsIsAnArgumentError) {
  const auto message_of = [](const Batches& batches, ListedBatches::Claims claims, int num_ranks = 2) -> std::string {
    try {
      shards_of(batches, claims, {.num_ranks = num_ranks});
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message_of({{0}, {1, 2}}, {.batch_size = 2}), HasSubstr("is not the last"));
  EXPECT_THAT(message_of({{0}, {1, 2}}, {.batch_size = 2}, 1), HasSubstr("is not the last"));
  EXPECT_THAT(message_of({{0, 1}, {2}, {3, 4}}, {.batch_size = 2}), HasSubstr("is not the last"));
  EXPECT_THAT(message_of({{0, 1, 2}}, {.batch_size = 2}), HasSubstr("but batch_size() is 2"));
  EXPECT_THAT(message_of({{0, 1}, {}}, {}), HasSubstr("is empty"));
  EXPECT_THAT(message_of({{0, 1}, {2}}, {.batch_size = 2, .drop_last = true}), HasSubstr("drop_last()"));
}

// Three samples for two ranks.
TEST(BatchSamplerShardTest, BatchesThatCannotBeSplitAreAnArgumentError) {
  const auto shard = [](ListedBatches::Claims claims) {
    BatchSamplerShard(std::make_shared<ListedBatches>(Batches{{0, 1, 2}}, claims),
                      {.num_ranks = 2, .split_batches = true}, 0);
  };
  EXPECT_THROW(shard({.batch_size = 3}), ArgumentError);
  EXPECT_THROW(shard({}), ArgumentError);
}

}  // namespace
}  // namespace accel
