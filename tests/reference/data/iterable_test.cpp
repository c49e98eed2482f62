// Loaders over iterable data sets on one rank: order, reading ahead, epochs and skipping.
#include <gmock/gmock.h>

#include <ranges>

#include "reference/data/data_loader.hpp"
#include "tests/reference/data/passes.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace accel {
namespace {

using testing::Batches;
using testing::read_pass;
using testing::values_of;

// A stream that counts what is read from it, and draws random numbers if asked to.
struct CountingStream {
  std::int64_t length = 0;
  std::shared_ptr<int> num_read = std::make_shared<int>(0);
  std::vector<std::int64_t> epochs = {};
  std::int64_t place = 0;

  void set_epoch(std::int64_t epoch) { epochs.push_back(epoch); }
  void reset() { place = 0; }
  std::optional<std::int64_t> next() {
    if (place == length) return std::nullopt;
    ++*num_read;
    return place++;
  }
};

// Concepts distinguish streams from indexed data sets; a wrong classification would select the wrong loader.
static_assert(StreamDataset<CountingStream> && IterableDataset<CountingStream> && !MapDataset<CountingStream>);
static_assert(IterableDataset<std::vector<at::Tensor>> && !IterableDataset<TensorDataset<at::Tensor>>);

class IterableTest : public ::testing::Test {
 protected:
  template <typename Loader>
  auto prepared(const Loader& loader, DataLoaderConfiguration config = {}) {
    return DataLoaderShard(loader, {.context = context_.get(), .config = config});
  }
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

// Each pass begins with reset().
TEST_F(IterableTest, BatchesComeInTheStreamsOrderPassAfterPass) {
  DataLoader loader(CountingStream{5}, {.batch_size = 2});
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}, {4}}));
}

// Any C++ range can be a data set. This one knows its size, so the loader knows its length.
TEST_F(IterableTest, ARangeIsAStream) {
  DataLoader loader(std::views::iota(std::int64_t{0}, std::int64_t{5}), {.batch_size = 2, .drop_last = true});
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}}));
  EXPECT_EQ(loader.size(), 2);
}

// A stream's end is only known after one more read, so the loader has to be one batch ahead.
TEST_F(IterableTest, TheLastBatchIsMarkedWhetherSharedOrDispatched) {
  for (const bool dispatch : {false, true}) {
    auto loader = prepared(DataLoader(CountingStream{5}, {.batch_size = 2}), {.dispatch_batches = dispatch});
    EXPECT_EQ(loader.is_dispatched(), dispatch);
    std::vector<bool> at_end;
    for ([[maybe_unused]] auto& batch : loader) at_end.push_back(context_->gradient_state.end_of_dataloader());
    EXPECT_THAT(at_end, ElementsAre(false, false, true));
    EXPECT_EQ(loader.iteration(), 1);
  }
}

// Accelerate dispatches iterable data sets by default, because few of them can be read in shards.
TEST_F(IterableTest, AStreamIsDispatchedByDefault) {
  EXPECT_TRUE(prepared(DataLoader(CountingStream{5})).is_dispatched());
  EXPECT_FALSE(prepared(DataLoader(TensorDataset(torch::arange(5)))).is_dispatched());
}

// Exactly one step: reading further would lose samples when a program stops and resumes.
TEST_F(IterableTest, ReadingIsOneStepAheadOfTheLoop) {
  for (const bool dispatch : {false, true}) {
    CountingStream stream{20};
    auto loader = prepared(DataLoader(stream, {.batch_size = 2}), {.dispatch_batches = dispatch});
    auto batches = loader.begin();
    // Two batches of two samples: the current one and the next.
    EXPECT_EQ(*stream.num_read, 4) << dispatch;
    ++batches;
    EXPECT_EQ(*stream.num_read, 6) << dispatch;
  }
}

// A stream has a single worker, since several could not divide it.
TEST_F(IterableTest, AWorkerReadsAheadWithoutAnEffectOnBatches) {
  auto loader = prepared(DataLoader(CountingStream{7}, {.batch_size = 2, .num_workers = 3}));
  EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}, {4, 5}, {6}}));
  for (const bool dispatch : {false, true}) {
    auto of_stream =
        prepared(DataLoader(CountingStream{9}, {.batch_size = 1, .num_workers = 1}), {.dispatch_batches = dispatch});
    EXPECT_EQ(read_pass(skip_first_batches(of_stream, 6)), Batches({{6}, {7}, {8}})) << dispatch;
    auto of_dataset =
        prepared(DataLoader(std::views::iota(std::int64_t{0}, std::int64_t{9}), {.batch_size = 1, .num_workers = 2}),
                 {.dispatch_batches = dispatch});
    EXPECT_EQ(read_pass(skip_first_batches(of_dataset, 6)), Batches({{6}, {7}, {8}})) << dispatch;
  }
}

// Streams shuffle themselves and need the number for it.
TEST_F(IterableTest, ADatasetReceivesTheEpochOfEachPass) {
  auto loader = prepared(DataLoader(CountingStream{2}, {.batch_size = 1}));
  read_pass(loader);
  read_pass(loader);
  EXPECT_THAT(loader.dataset().epochs, ElementsAre(0, 1));
}

// A stream cannot jump, so skipping means reading.
TEST_F(IterableTest, SkippedBatchesAreReadAndTheNextPassIsTheNextEpoch) {
  auto loader = prepared(DataLoader(CountingStream{5}, {.batch_size = 2}));
  auto rest = skip_first_batches(loader, 2);
  EXPECT_EQ(read_pass(rest), Batches({{4}}));
  EXPECT_EQ(loader.iteration(), 1);
  auto nothing = skip_first_batches(loader, 9);
  EXPECT_EQ(read_pass(nothing), Batches());
  EXPECT_EQ(loader.iteration(), 2);
  EXPECT_EQ(read_pass(loader), Batches({{0, 1}, {2, 3}, {4}}));
  EXPECT_THROW(skip_first_batches(loader, -1), ArgumentError);
}

// PyTorch raises the same errors.
TEST_F(IterableTest, OptionsThatNeedAnIndexOrALengthAreRejected) {
  try {
    DataLoader loader(CountingStream{5}, {.shuffle = true});
    FAIL() << "expected an ArgumentError";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("iterable dataset determines its own order"));
  }
  const DataLoader loader(CountingStream{5});
  EXPECT_THROW((void)loader.size(), StateError);
  EXPECT_THROW((void)prepared(loader).total_dataset_length(), StateError);
}

// The epoch is not counted, as nothing was read.
TEST_F(IterableTest, AnEmptyStreamGivesNothing) {
  for (const bool dispatch : {false, true}) {
    auto loader = prepared(DataLoader(CountingStream{0}, {.batch_size = 2}), {.dispatch_batches = dispatch});
    EXPECT_EQ(read_pass(loader), Batches());
    EXPECT_EQ(loader.iteration(), 0);
    EXPECT_FALSE(context_->gradient_state.in_dataloader());
  }
}

// Workers have already read the batches that are skipped.
TEST_F(IterableTest, ADispatchedLoaderWithWorkersSkipsCorrectly) {
  struct Numbers {
    [[nodiscard]] std::int64_t size() const { return 9; }
    [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
  };
  for (const bool dispatch : {false, true}) {
    auto loader = prepared(DataLoader(Numbers(), {.batch_size = 1, .num_workers = 2}), {.dispatch_batches = dispatch});
    for (const int skip : {1, 2, 3, 8, 9, 20}) {
      Batches expected;
      for (std::int64_t index = skip; index < 9; ++index) expected.push_back({index});
      EXPECT_EQ(read_pass(skip_first_batches(loader, skip)), expected) << "dispatch " << dispatch << ", skip " << skip;
    }
  }
}

// The reader has its own generator, so that the stream's draws do not disturb those of the program.
TEST_F(IterableTest, AStreamThatDrawsIsReadByTheReadersGenerator) {
  struct Drawing {
    at::Tensor order;
    std::int64_t place = 0;
    void reset() {
      order = torch::randperm(5, at::kLong);
      place = 0;
    }
    std::optional<at::Tensor> next() { return place < 5 ? std::optional(order[place++]) : std::nullopt; }
  };
  auto loader = prepared(DataLoader(Drawing(), {.batch_size = 5, .num_workers = 1}));
  const auto reference = context_->generator.clone();
  const auto base_seed = static_cast<std::uint64_t>(draw_int64(reference));
  EXPECT_EQ(read_pass(loader), Batches({values_of(torch::randperm(5, make_generator(base_seed), at::kLong))}));
  EXPECT_TRUE(context_->generator.get_state().equal(reference.get_state()));
}

// A pass that is left early frees the data set with its files, whether nobody, one or several workers have read ahead.
TEST_F(IterableTest, AnAbandonedPassKeepsNoDataset) {
  struct Parts : CountingStream {
    [[nodiscard]] std::int64_t num_shards() const { return 4; }
    [[nodiscard]] Parts shard(std::int64_t, std::int64_t) const { return *this; }
  };
  struct Indexed : CountingStream {
    [[nodiscard]] std::int64_t size() const { return length; }
    [[nodiscard]] static std::int64_t get(std::int64_t index) { return index; }
  };
  static_assert(ShardedDataset<Parts> && !ShardedDataset<CountingStream> && MapDataset<Indexed>);
  const auto expect_freed = [&]<typename Dataset>(const char* kind, Dataset dataset) {
    for (const int num_workers : {0, 1, 2, 3}) {
      for (const bool dispatch : {false, true}) {
        dataset.length = 40;
        dataset.num_read = std::make_shared<int>(0);
        {
          auto loader = prepared(DataLoader(dataset, {.batch_size = 2, .num_workers = num_workers}),
                                 {.dispatch_batches = dispatch});
          auto batch = loader.begin();
          ++batch;
        }
        EXPECT_EQ(dataset.num_read.use_count(), 1) << kind << ", " << num_workers << " workers, dispatch " << dispatch;
      }
    }
  };
  expect_freed("a stream", CountingStream());
  expect_freed("a stream of parts", Parts());
  expect_freed("an indexed data set", Indexed());
}

// Resuming in the middle of a large epoch would otherwise take as long as the epoch.
TEST_F(IterableTest, AMapLoaderSkipsWithoutReading) {
  struct Counting {
    std::shared_ptr<int> num_read = std::make_shared<int>(0);
    [[nodiscard]] std::int64_t size() const { return 8; }
    std::int64_t get(std::int64_t index) {
      ++*num_read;
      return index;
    }
  } dataset;
  auto loader =
      prepared(DataLoader(dataset, {.batch_size = 2, .shuffle = true}), {.use_seedable_sampler = true, .data_seed = 7});
  auto rest = skip_first_batches(loader, 3);
  EXPECT_EQ(rest.size(), 1);
  EXPECT_EQ(read_pass(rest), Batches({{2, 6}}));
  EXPECT_EQ(*dataset.num_read, 2);
  EXPECT_EQ(read_pass(loader), Batches({{3, 6}, {5, 7}, {2, 1}, {4, 0}}));  // the order of epoch 1
  EXPECT_EQ(read_pass(rest).size(), 4U) << "it passes over batches once";
}

}  // namespace
}  // namespace accel
