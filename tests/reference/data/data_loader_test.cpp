// The loader on one rank: order, random numbers that it consumes, the end of a pass, and loops that end early. The
// draws are pinned, because Python consumes the same ones.
#include "reference/data/data_loader.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/reference/data/passes.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace accel {
namespace {

using testing::Batches;
using testing::read_pass;
using testing::values_of;

// Sample i is the number i.
TensorDataset<at::Tensor> numbers(std::int64_t size) { return TensorDataset(torch::arange(size, at::kLong)); }

// The samples of all batches, in order.
std::vector<std::int64_t> samples_of(const Batches& batches) {
  std::vector<std::int64_t> samples;
  for (const auto& batch : batches) samples.insert(samples.end(), batch.begin(), batch.end());
  return samples;
}

std::vector<std::int64_t> range(std::int64_t size) {
  std::vector<std::int64_t> samples(size);
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

// A single rank with the default seed.
class DataLoaderTest : public ::testing::Test {
 protected:
  template <typename Loader>
  auto prepared(const Loader& loader, DataLoaderConfiguration config = {}) {
    return DataLoaderShard(loader, {.context = context_.get(), .config = config});
  }
  [[nodiscard]] GradientState& gradient_state() { return context_->gradient_state; }
  [[nodiscard]] bool generator_equals(const at::Generator& reference) const {
    return context_->generator.get_state().equal(reference.get_state());
  }
  [[nodiscard]] at::Generator copy_of_generator() const { return context_->generator.clone(); }

 private:
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

// Five samples in batches of two end with a short batch.
TEST_F(DataLoaderTest, BatchesFollowTheOrderOfTheDataset) {
  DataLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}, {4}}));
}

TEST_F(DataLoaderTest, DropLastLeavesTheShortBatchOut) {
  DataLoader loader(numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}}));
}

// Two passes differ, and the plain and the prepared loader draw differently.
TEST_F(DataLoaderTest, AShuffledPassVisitsEachSampleOnce) {
  DataLoader plain(numbers(23), {.batch_size = 4, .shuffle = true});
  auto shard = prepared(plain);
  const auto first = samples_of(read_pass(plain)), second = samples_of(read_pass(shard));
  EXPECT_NE(first, range(23));
  EXPECT_NE(first, second);
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(range(23)));
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(range(23)));
}

// torch.utils.data.DataLoader draws a base seed for its workers in every pass, even without workers.
TEST_F(DataLoaderTest, EachPassDrawsOneInt64FromTheRanksGenerator) {
  auto loader = prepared(DataLoader(numbers(5), {.batch_size = 2}));
  const auto reference = copy_of_generator();
  EXPECT_TRUE(generator_equals(reference)) << "prepare draws nothing on one rank";
  for (int pass = 0; pass < 2; ++pass) {
    read_pass(loader);
    draw_int64(reference);
    EXPECT_TRUE(generator_equals(reference)) << "pass " << pass;
  }
}

// The base seed of the workers is drawn before the sampler's seed, as in torch/utils/data/dataloader.py.
TEST_F(DataLoaderTest, AShuffledPassDrawsItsOwnSeedBeforeTheSamplers) {
  const auto reference = copy_of_generator();
  DataLoader loader(numbers(9), {.batch_size = 4, .shuffle = true});
  for (int pass = 0; pass < 2; ++pass) {
    draw_int64(reference);
    const auto seed = static_cast<std::uint64_t>(draw_int64(reference));
    EXPECT_EQ(samples_of(read_pass(loader)), values_of(torch::randperm(9, make_generator(seed), at::kLong)));
    EXPECT_TRUE(generator_equals(reference)) << "pass " << pass;
  }
}

// The order must then not depend on what else the program draws, and must not disturb it.
TEST_F(DataLoaderTest, ALoaderWithAGeneratorDoesNotUseTheRanks) {
  const auto reference = copy_of_generator();
  const auto of_loader = make_generator(3), same = make_generator(3);
  DataLoader loader(numbers(9), {.batch_size = 4, .shuffle = true, .generator = of_loader});
  const auto samples = samples_of(read_pass(loader));
  draw_int64(same);
  EXPECT_EQ(samples, values_of(torch::randperm(9, same, at::kLong)));
  EXPECT_TRUE(generator_equals(reference));
}

// The loader must take the sampler's order as it is.
TEST_F(DataLoaderTest, AUsersSamplerDeterminesTheOrder) {
  const auto sampler = std::make_shared<SeedableRandomSampler>(8, /*data_seed=*/7);
  DataLoader loader(numbers(8), {.batch_size = 4, .sampler = sampler});
  // The order that Python's SeedableRandomSampler draws for seed 7.
  EXPECT_EQ(read_pass(loader), Batches({{7, 0, 3, 4}, {1, 5, 2, 6}}));
}

TEST_F(DataLoaderTest, AllProblemsOfTheOptionsAreInOneMessage) {
  try {
    DataLoader loader(numbers(8), {.batch_size = 0,
                                   .shuffle = true,
                                   .num_workers = -1,
                                   .prefetch_factor = 0,
                                   .sampler = std::make_shared<SequentialSampler>(8)});
    FAIL() << "expected an ArgumentError";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("batch_size"), HasSubstr("num_workers"),
                                               HasSubstr("prefetch_factor"), HasSubstr("shuffle and sampler")));
  }
}

// An ignored batch size would be noticed late, as a wrong learning rate.
TEST_F(DataLoaderTest, ABatchSamplerExcludesTheOptionsThatItReplaces) {
  class OneBatch : public BatchSampler {
   public:
    void begin_pass() override { done_ = false; }
    std::optional<std::vector<std::int64_t>> next() override {
      return std::exchange(done_, true) ? std::nullopt : std::optional(std::vector<std::int64_t>{4, 2});
    }

   private:
    bool done_ = false;
  };
  DataLoader loader(numbers(8), {.batch_sampler = std::make_shared<OneBatch>()});
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(read_pass(loader), Batches({{4, 2}}));
  EXPECT_THROW((void)loader.size(), StateError);
  EXPECT_THROW(DataLoader(numbers(8), {.batch_size = 2, .batch_sampler = std::make_shared<OneBatch>()}), ArgumentError);
  EXPECT_THROW(DataLoader(numbers(8), {.shuffle = true, .batch_sampler = std::make_shared<OneBatch>()}), ArgumentError);
}

TEST_F(DataLoaderTest, SetEpochReachesTheBatchSamplerAtOnce) {
  // One batch in epoch 0, two in epoch 1, ...
  class Growing : public BatchSampler {
   public:
    [[nodiscard]] std::optional<std::int64_t> size() const override { return epoch_ + 1; }
    void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
    void begin_pass() override { left_ = epoch_ + 1; }
    std::optional<std::vector<std::int64_t>> next() override {
      return left_-- > 0 ? std::optional(std::vector<std::int64_t>{left_}) : std::nullopt;
    }

   private:
    std::int64_t epoch_ = 0, left_ = 0;
  };
  auto loader = prepared(DataLoader(numbers(8), {.batch_sampler = std::make_shared<Growing>()}));
  loader.set_epoch(2);
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(read_pass(loader).size(), 3U);
  loader.set_epoch(4);
  for ([[maybe_unused]] auto& batch : loader) {
    loader.set_epoch(0);  // of the next pass
    EXPECT_EQ(loader.size(), 5);
  }
}

// A batch may be of any type, here a number.
TEST_F(DataLoaderTest, ACollateFunctionGetsTheSamples) {
  DataLoader loader(numbers(3), {.batch_size = 2}, [](const std::vector<std::tuple<at::Tensor>>& samples) {
    return static_cast<std::int64_t>(samples.size());
  });
  std::vector<std::int64_t> sizes;
  for (const auto size : loader) sizes.push_back(size);
  EXPECT_THAT(sizes, ElementsAre(2, 1));
}

// The loader reads one batch ahead to know this, as DataLoaderShard does.
TEST_F(DataLoaderTest, OnlyTheLastBatchIsMarkedAsTheEnd) {
  auto loader = prepared(DataLoader(numbers(5), {.batch_size = 2}));
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<bool> at_end;
    for ([[maybe_unused]] auto& batch : loader) at_end.push_back(gradient_state().end_of_dataloader());
    EXPECT_THAT(at_end, ElementsAre(false, false, true));
    EXPECT_FALSE(gradient_state().in_dataloader());
  }
}

// The first batch is also the last, so the loader has to look ahead before it returns it.
TEST_F(DataLoaderTest, ASingleBatchIsMarkedAsTheEnd) {
  auto loader = prepared(DataLoader(numbers(2), {.batch_size = 2}));
  for ([[maybe_unused]] auto& batch : loader) EXPECT_TRUE(gradient_state().end_of_dataloader());
  EXPECT_EQ(loader.iteration(), 1);
}

// Shuffling nothing must work too, as a filter may leave no sample.
TEST_F(DataLoaderTest, AnEmptyDatasetYieldsNothing) {
  for (const bool shuffle : {false, true}) {
    DataLoader plain(numbers(0), {.batch_size = 2, .shuffle = shuffle});
    auto loader = prepared(plain);
    EXPECT_TRUE(read_pass(plain).empty());
    EXPECT_TRUE(read_pass(loader).empty());
    EXPECT_EQ(loader.iteration(), 0);
    EXPECT_FALSE(gradient_state().in_dataloader());
  }
}

// Python's generator does not advance the epoch either if the loop ends early.
TEST_F(DataLoaderTest, ABreakDeactivatesTheLoaderAndRepeatsTheEpoch) {
  auto loader = prepared(DataLoader(numbers(8), {.batch_size = 2, .shuffle = true}),
                         {.use_seedable_sampler = true, .data_seed = 7});
  for (auto& [batch] : loader) {
    EXPECT_THAT(values_of(batch), ElementsAre(7, 0));
    EXPECT_TRUE(gradient_state().in_dataloader());
    break;
  }
  EXPECT_FALSE(gradient_state().in_dataloader());
  EXPECT_FALSE(gradient_state().end_of_dataloader());
  EXPECT_EQ(gradient_state().remainder(), -1);
  EXPECT_EQ(loader.iteration(), 0);
  EXPECT_EQ(read_pass(loader), Batches({{7, 0}, {3, 4}, {1, 5}, {2, 6}}));
  EXPECT_EQ(read_pass(loader), Batches({{3, 6}, {5, 7}, {2, 1}, {4, 0}}));
  EXPECT_EQ(loader.iteration(), 2);
}

// The epoch counts as complete only when the loop ends by itself. A break on the last batch looks almost the same.
TEST_F(DataLoaderTest, ABreakOnTheLastBatchRepeatsTheEpochToo) {
  auto loader = prepared(DataLoader(numbers(8), {.batch_size = 4, .shuffle = true}),
                         {.use_seedable_sampler = true, .data_seed = 7});
  for ([[maybe_unused]] auto& batch : loader) {
    if (gradient_state().end_of_dataloader()) break;
  }
  EXPECT_FALSE(gradient_state().in_dataloader());
  EXPECT_EQ(loader.iteration(), 0);
  EXPECT_EQ(read_pass(loader), Batches({{7, 0, 3, 4}, {1, 5, 2, 6}}));
}

// Otherwise the next step would believe to be in the middle of an epoch.
TEST_F(DataLoaderTest, AnExceptionInTheLoopDeactivatesTheLoader) {
  auto loader = prepared(DataLoader(numbers(8), {.batch_size = 2}));
  EXPECT_THROW(for ([[maybe_unused]] auto& batch : loader) throw StateError("stop"), StateError);
  EXPECT_FALSE(gradient_state().in_dataloader());
}

// An evaluation loop inside a training loop is common. The state of the outer loop must be restored.
TEST_F(DataLoaderTest, ALoopInsideAnotherLeavesTheOuterOneActive) {
  auto outer = prepared(DataLoader(numbers(5), {.batch_size = 2}));
  auto inner = prepared(DataLoader(numbers(6), {.batch_size = 4}));
  std::vector<bool> at_end;
  for ([[maybe_unused]] auto& batch : outer) {
    std::vector<bool> inner_at_end;
    for ([[maybe_unused]] auto& inner_batch : inner) {
      inner_at_end.push_back(gradient_state().end_of_dataloader());
      EXPECT_EQ(gradient_state().remainder(), 2);
    }
    EXPECT_THAT(inner_at_end, ElementsAre(false, true));
    EXPECT_EQ(gradient_state().remainder(), 1);
    at_end.push_back(gradient_state().end_of_dataloader());
  }
  EXPECT_THAT(at_end, ElementsAre(false, false, true));
}

// Both loops would use the same place in the data.
TEST_F(DataLoaderTest, ALoopOverTheLoaderInsideItsOwnLoopIsAStateError) {
  DataLoader plain(numbers(5), {.batch_size = 2});
  auto loader = prepared(plain);
  auto copy = skip_first_batches(loader, 1);
  for ([[maybe_unused]] auto& batch : loader) EXPECT_THROW(read_pass(copy), StateError);
  EXPECT_FALSE(gradient_state().in_dataloader());
  EXPECT_EQ(read_pass(copy), Batches({{2, 3}, {4}}));
}

// The destructor of the old iterator runs during the new pass.
TEST_F(DataLoaderTest, AnOldIteratorDoesNotEndALaterPass) {
  DataLoader plain(numbers(2), {.batch_size = 1});
  auto loader = prepared(plain);
  auto kept = std::make_optional(loader.begin());
  for (int batch = 0; batch < 2; ++batch) ++*kept;
  for ([[maybe_unused]] auto& batch : loader) {
    kept.reset();
    EXPECT_THROW(read_pass(loader), StateError);
  }
}

// Only prepared loaders tell the optimizer about the end of an epoch.
TEST_F(DataLoaderTest, APlainLoaderDoesNotChangeTheGradientState) {
  DataLoader loader(numbers(5), {.batch_size = 2});
  for ([[maybe_unused]] auto& batch : loader) EXPECT_FALSE(gradient_state().in_dataloader());
}

// -1 is Accelerate's value for "unknown", which disables truncation in gather_for_metrics.
TEST_F(DataLoaderTest, TheRemainderIsUnknownWhereTheTailIsDropped) {
  auto loader = prepared(DataLoader(numbers(5), {.batch_size = 2, .drop_last = true}));
  for ([[maybe_unused]] auto& batch : loader) {
    EXPECT_TRUE(gradient_state().in_dataloader());
    EXPECT_EQ(gradient_state().remainder(), -1);
  }
}

// The expected order is that of the second epoch in Python.
TEST_F(DataLoaderTest, SetEpochDeterminesTheOrder) {
  auto loader = prepared(DataLoader(numbers(8), {.batch_size = 8, .shuffle = true}),
                         {.use_seedable_sampler = true, .data_seed = 7});
  loader.set_epoch(1);
  EXPECT_EQ(read_pass(loader), Batches({{3, 6, 5, 7, 2, 1, 4, 0}}));
  EXPECT_EQ(loader.iteration(), 2);
}

// Workers finish in any order, and the last batch is read ahead of time.
TEST_F(DataLoaderTest, WorkersChangeNeitherTheOrderNorTheEnd) {
  auto loader = prepared(DataLoader(numbers(7), {.batch_size = 2, .num_workers = 3}));
  Batches batches;
  std::vector<bool> at_end;
  for (auto& [batch] : loader) {
    batches.push_back(values_of(batch));
    at_end.push_back(gradient_state().end_of_dataloader());
  }
  EXPECT_EQ(batches, Batches({{0, 1}, {2, 3}, {4, 5}, {6}}));
  EXPECT_THAT(at_end, ElementsAre(false, false, false, true));
}

}  // namespace
}  // namespace accel
