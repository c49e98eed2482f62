// Sharding of a sampler among ranks: which indices a rank reads, and when the sampler draws. The moment of a draw
// matters, because all ranks share one generator state.
#include "reference/data/samplers/sampler_shard.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/reference/data/passes.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

using testing::Batches;

// Visits samples backwards and counts its passes.
class BackwardsSampler : public Sampler {
 public:
  explicit BackwardsSampler(std::int64_t num_samples) : num_samples_(num_samples) {}
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> begin_pass() override {
    ++num_begun;
    std::vector<std::int64_t> order;
    for (auto sample = num_samples_; sample > 0; --sample) order.push_back(sample - 1);
    return order;
  }
  std::vector<std::int64_t> continue_pass() override {
    ++num_ended;
    return {};
  }

  int num_begun = 0, num_ended = 0;

 private:
  std::int64_t num_samples_;
};

// All batches of one pass.
Batches read_pass(SamplerShard& shard) {
  Batches batches;
  shard.begin_pass();
  while (auto step = shard.next()) batches.push_back(std::move(step->indices));
  return batches;
}

// A sampler that counts backwards makes a wrong order visible.
TEST(SamplerShardTest, BatchesHoldTheSamplersOrder) {
  SamplerShard shard(std::make_shared<BackwardsSampler>(5), {.batch_size = 2, .num_ranks = 2}, /*rank=*/1);
  EXPECT_EQ(read_pass(shard), Batches({{2, 1}, {3, 2}}));
  EXPECT_EQ(shard.size(), 2);
}

// A sampler may visit a part of the data set only.
TEST(SamplerShardTest, TheNumberOfSamplesIsThatOfTheSampler) {
  SamplerShard shard(std::make_shared<SequentialSampler>(3), {.num_samples = 100, .batch_size = 2}, /*rank=*/0);
  EXPECT_EQ(read_pass(shard), Batches({{0, 1}, {2}}));
}

// As in Python, so that numbers drawn between creating a loader and using it do not change the order.
TEST(SamplerShardTest, TheSamplerDrawsWithTheFirstBatch) {
  const auto sampler = std::make_shared<BackwardsSampler>(4);
  SamplerShard shard(sampler, {.batch_size = 2}, /*rank=*/0);
  shard.begin_pass();
  EXPECT_EQ(sampler->num_begun, 0);
  shard.next();
  shard.next();
  EXPECT_EQ(sampler->num_begun, 1);
}

// Python's generator ends its pass only when it is exhausted, and then draws once more (RandomSampler).
TEST(SamplerShardTest, TheSamplersPassEndsOnceAndOnlyWhenItIsExhausted) {
  const auto sampler = std::make_shared<BackwardsSampler>(4);
  SamplerShard shard(sampler, {.batch_size = 2}, /*rank=*/0);
  shard.begin_pass();
  shard.next();
  shard.next();
  EXPECT_EQ(sampler->num_ended, 0);
  EXPECT_FALSE(shard.next().has_value());
  EXPECT_FALSE(shard.next().has_value());
  EXPECT_EQ(sampler->num_ended, 1);
}

TEST(SamplerShardTest, RanksReadTheirShardsOfAcceleratesSeedableOrder) {
  const auto shard_of = [](int rank) {
    SamplerShard shard(std::make_shared<SeedableRandomSampler>(8, /*data_seed=*/7), {.batch_size = 2, .num_ranks = 2},
                       rank);
    auto first = read_pass(shard);
    return std::pair(std::move(first), read_pass(shard));
  };
  EXPECT_EQ(shard_of(0), std::pair(Batches({{7, 0}, {1, 5}}), Batches({{3, 6}, {2, 1}})));
  EXPECT_EQ(shard_of(1), std::pair(Batches({{3, 4}, {2, 6}}), Batches({{5, 7}, {4, 0}})));
}

// Ranks would have different numbers of batches, and the last step would hang.
TEST(SamplerShardTest, ASamplerOfAnotherSizeThanItReportsIsAnArgumentError) {
  class Lying : public Sampler {
   public:
    explicit Lying(std::int64_t given) : given_(given) {}
    [[nodiscard]] std::int64_t size() const override { return 4; }
    std::vector<std::int64_t> begin_pass() override { return std::vector<std::int64_t>(given_, 0); }

   private:
    std::int64_t given_;
  };
  for (const std::int64_t given : {3, 5}) {
    SamplerShard shard(std::make_shared<Lying>(given), {.batch_size = 2}, /*rank=*/0);
    EXPECT_THROW(read_pass(shard), ArgumentError) << given;
  }
}

// An order of a billion indices must not be drawn at once.
TEST(SamplerShardTest, PartsOfTheOrderAreDrawnWhenAStepNeedsThem) {
  const auto generator = make_generator(3), reference = make_generator(3);
  SamplerShard shard(
      std::make_shared<RandomSampler>(4, RandomSamplerOptions{.num_samples = 12, .generator = generator}),
      {.batch_size = 2}, /*rank=*/0);
  shard.begin_pass();
  for (int step = 0; step < 6; ++step) {
    shard.next();
    if (step % 2 == 0) torch::randperm(4, reference, at::kLong);
    EXPECT_TRUE(generator.get_state().equal(reference.get_state())) << "step " << step;
  }
}

// A sampler that draws one index at a time has drawn no more than a resumed pass has read before its next step.
TEST(SamplerShardTest, AResumedPassDrawsWhatItHasRead) {
  class OneByOne : public BackwardsSampler {
   public:
    using BackwardsSampler::BackwardsSampler;
    std::vector<std::int64_t> begin_pass() override {
      num_drawn = 0;
      return continue_pass();
    }
    std::vector<std::int64_t> continue_pass() override {
      if (num_drawn == size()) return {};
      return {num_drawn++};
    }
    std::int64_t num_drawn = 0;
  };
  for (std::int64_t num_read = 1; num_read < 6; ++num_read) {
    const auto sampler = std::make_shared<OneByOne>(6);
    SamplerShard shard(sampler, {.batch_size = 1}, /*rank=*/0);
    shard.begin_pass(num_read, /*draws_at_once=*/true);
    EXPECT_EQ(sampler->num_drawn, num_read);
    EXPECT_THAT(shard.next()->indices, ElementsAre(num_read));
  }
}

TEST(SamplerShardTest, ABatchThatCannotBeSplitIsAnArgumentError) {
  const auto sampler = std::make_shared<SequentialSampler>(8);
  EXPECT_THROW(SamplerShard(sampler, {.batch_size = 3, .num_ranks = 2, .split_batches = true}, /*rank=*/0),
               ArgumentError);
}

// Counts how many indices it is asked for.
class LongSampler : public SequentialSampler {
 public:
  explicit LongSampler(std::int64_t num_samples) : SequentialSampler(num_samples) {}
  std::vector<std::int64_t> continue_pass() override {
    auto part = SequentialSampler::continue_pass();
    num_made += static_cast<std::int64_t>(part.size());
    return part;
  }
  std::int64_t num_made = 0;
};

// Resuming after a billion samples must not build the indices that were read already.
TEST(SamplerShardTest, APassThatStartsLateInTheOrderMakesFewIndices) {
  const auto sampler = std::make_shared<LongSampler>(1'000'000'003);
  SamplerShard shard(sampler, {.batch_size = 32, .num_ranks = 4}, /*rank=*/3);
  shard.begin_pass(/*num_read=*/1'000'000'000 - 128);
  EXPECT_THAT(shard.next()->indices, ::testing::AllOf(::testing::SizeIs(32), ::testing::Contains(999'999'999)));
  const auto last = shard.next();
  EXPECT_EQ(last->remainder, 3);
  EXPECT_THAT(last->indices, ::testing::AllOf(::testing::SizeIs(32), ::testing::Each(::testing::Lt(128))))
      << "the start of the order fills it up";
  EXPECT_FALSE(shard.next());
  EXPECT_LT(sampler->num_made, 100'000);
}

// The start of the order is needed again to pad the last step, although its part was freed.
TEST(SamplerShardTest, ConsumedPartsAreFreedAndTheStartStillFillsTheEnd) {
  const RandomSamplerOptions options{.replacement = true, .num_samples = 1001, .generator = make_generator(5)};
  RandomSampler reference(7, {.replacement = true, .num_samples = 1001, .generator = make_generator(5)});
  std::vector<std::int64_t> order = reference.begin_pass();
  for (auto part = reference.continue_pass(); !part.empty(); part = reference.continue_pass())
    order.insert(order.end(), part.begin(), part.end());
  SamplerShard shard(std::make_shared<RandomSampler>(7, options), {.batch_size = 3, .num_ranks = 2}, /*rank=*/1);
  const auto batches = read_pass(shard);
  for (std::size_t step = 0; step < batches.size(); ++step) {
    for (std::size_t place = 0; place < 3; ++place)
      EXPECT_EQ(batches[step][place], order[(step * 6 + 3 + place) % 1001]);
  }
}

}  // namespace
}  // namespace accel
