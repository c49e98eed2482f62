// With dispatch_batches rank 0 reads for all ranks. What it reads must reach every rank, and so must its errors: a
// rank that waits for a batch that rank 0 failed to read would hang.
#include <atomic>
#include <ranges>

#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::dispatched_loader_laws {
namespace {

// Fails at a chosen sample, or in reset() if `fails_at` is negative. From `longer_from` on samples have another
// shape, so that they do not stack.
struct FailingStream {
  std::int64_t fails_at = 0, longer_from = 9, place = 0;
  void reset() {
    if (fails_at < 0) throw StateError("there is no such file");
    place = 0;
  }
  std::optional<at::Tensor> next() {
    if (place == fails_at) throw StateError("the file ends in the middle of sample 3");
    return at::full({place++ < longer_from ? 1 : 2}, 1.0);
  }
};

void expect_error_on_every_rank(const FailingStream& stream, std::int64_t batch_size, const std::string& text,
                                std::int64_t skip_batches = 0) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [&](RankContext& rank) {
      Accelerator accelerator({}, rank);
      DataLoader loader(stream, {.batch_size = batch_size});
      auto batches = skip_first_batches(accelerator.prepare(loader), skip_batches);
      try {
        for ([[maybe_unused]] auto& batch : batches) {
        }
        ADD_FAILURE() << "rank " << rank.rank << " read to the end";
        // Every rank must throw the text of rank 0's error, not a time-out or "connection closed".
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(text)) << "rank " << rank.rank;
      }
      EXPECT_FALSE(accelerator.gradient_state().in_dataloader());
    });
  }
}

// Only rank 0 reads. The others wait for its broadcast and would wait forever.
TEST(DispatchedLoaderTest, WhatReadingThrowsReachesEveryRank) {
  expect_error_on_every_rank({.fails_at = 3}, 1, "the file ends in the middle of sample 3");
  expect_error_on_every_rank({.fails_at = 4}, 1, "the file ends in the middle of sample 3", /*skip_batches=*/2);
  expect_error_on_every_rank({.fails_at = -1}, 1, "there is no such file");
}

// gather_for_metrics needs the same number of tensors everywhere.
TEST(DispatchedLoaderTest, AListOfAnotherLengthOnOneRankIsAnErrorOnEveryRank) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      DataLoader loader(std::views::iota(std::int64_t{0}, std::int64_t{4}), {.batch_size = 2});
      for (auto& ids : accelerator.prepare(loader)) {
        // Rank 1 alone passes a list that is too long. The check needs a collective, so that the other ranks throw
        // as well.
        const std::vector<std::string> found(rank.rank == 1 ? ids.size(0) + 1 : ids.size(0), "x");
        EXPECT_THROW(accelerator.gather_for_metrics(std::pair(ids, found)), ArgumentError);
        const std::vector<std::pair<at::Tensor, int>> boxes(ids.size(0), {at::zeros({rank.rank, 4}), rank.rank});
        EXPECT_EQ(accelerator.gather_for_metrics(boxes, {.use_gather_object = true}).size(), 4);
        EXPECT_THROW(accelerator.gather_for_metrics(boxes, {.use_gather_object = false}), ArgumentError);
      }
    });
  }
}

// Rank 0 concatenates the batches of a step, which needs equal shapes.
TEST(DispatchedLoaderTest, BatchesThatDoNotFitTogetherAreAnErrorOnEveryRank) {
  expect_error_on_every_rank({.fails_at = 9, .longer_from = 2}, 1, "concatenate: tensors of");
}

// One sample for four ranks: every rank receives a copy, and the metrics count the sample once.
TEST(DispatchedLoaderTest, OneSampleReachesEveryRankAndMetricsHoldItOnce) {
  run_ranks(Backend::kSim, 4, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    DataLoader loader(std::views::iota(std::int64_t{7}, std::int64_t{8}), {.batch_size = 4});
    int num_batches = 0;
    for (auto& ids : accelerator.prepare(loader)) {
      ++num_batches;
      EXPECT_TRUE(ids.equal(at::tensor({7}, at::kLong)));
      EXPECT_TRUE(accelerator.gather_for_metrics(ids).equal(at::tensor({7}, at::kLong)));
      EXPECT_THROW(accelerator.gather_for_metrics(at::cat({ids, ids})), ArgumentError);
      EXPECT_THROW(accelerator.gather_for_metrics(std::vector<std::string>{"a", "b"}), ArgumentError);
    }
    EXPECT_EQ(num_batches, 1);
  });
}

// The last step is filled with samples from the first one. They must be copies, because the program may change its
// batch in place.
TEST(DispatchedLoaderTest, BatchesKeptForTheEndCannotBeChangedByTheProgram) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    DataLoader loader(std::views::iota(std::int64_t{0}, std::int64_t{5}), {.batch_size = 1});
    std::vector<std::int64_t> seen;
    for (auto& ids : accelerator.prepare(loader)) {
      seen.push_back(ids.template item<std::int64_t>());
      // A change in place, as normalization code does it.
      ids.add_(100);
    }
    EXPECT_EQ(seen, rank.rank == 0 ? std::vector<std::int64_t>({0, 2, 4}) : std::vector<std::int64_t>({1, 3, 0}));
  });
}

TEST(DispatchedLoaderTest, TensorsOfAnyShapeAreGatheredAsObjects) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    DataLoader loader(std::views::iota(std::int64_t{0}, std::int64_t{4}), {.batch_size = 2});
    std::vector<std::int64_t> sizes;
    for (auto& ids : accelerator.prepare(loader)) {
      std::vector<at::Tensor> boxes;  // sample i has i boxes
      for (std::int64_t row = 0; row < ids.size(0); ++row)
        boxes.push_back(at::zeros({ids[row].item<std::int64_t>(), 4}));
      for (const auto& of_sample : accelerator.gather_for_metrics(boxes, {.use_gather_object = true}))
        sizes.push_back(of_sample.size(0));
    }
    EXPECT_THAT(sizes, ::testing::ElementsAre(0, 1, 2, 3));
  });
}

TEST(DispatchedLoaderTest, AFunctionOfTheUsersCutsTheStep) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    DataLoader plain(std::views::iota(std::int64_t{0}, std::int64_t{8}), {.batch_size = 2});
    // Takes every second row rather than one half.
    auto loader = accelerator.prepare_data_loader(plain, [](const at::Tensor& step, RowRange rows, int part) {
      EXPECT_EQ(rows.size(), step.size(0) / 2);
      return step.slice(0, part, step.size(0), 2);
    });
    std::vector<at::Tensor> own;
    for (auto& ids : loader) own.push_back(ids);
    EXPECT_TRUE(at::cat(own).equal(at::arange(rank.rank, 8, 2)));
  });
}

// Python's loaders with workers draw their first indices on every rank, so later draws are equal on all ranks.
TEST(DispatchedLoaderTest, EveryRankDrawsLikeRankZero) {
  const auto drawn = collect_ranks(Backend::kSim, 3, [](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}}, rank);
    set_seed(3);
    DataLoader loader(TensorDataset(at::arange(9)), {.batch_size = 2, .shuffle = true, .num_workers = 2});
    for ([[maybe_unused]] auto& batch : accelerator.prepare(loader)) {
    }
    return draw_int64(default_generator());
  });
  EXPECT_THAT(drawn, ::testing::Each(drawn[0]));
}

// A dataset on rank 1 or 2 may not exist at all, for example if only rank 0 has the file.
TEST(DispatchedLoaderTest, OnlyRankZeroReads) {
  std::atomic<int> num_read{0};
  struct Counting {
    std::atomic<int>* num_read;
    [[nodiscard]] std::int64_t size() const { return 12; }
    std::int64_t get(std::int64_t index) const {
      EXPECT_EQ(current_rank().rank, 0);
      ++*num_read;
      return index;
    }
  };
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}}, rank);
    DataLoader loader(Counting{&num_read}, {.batch_size = 2, .shuffle = true});
    for ([[maybe_unused]] auto& batch : accelerator.prepare(loader)) {
    }
  });
  EXPECT_EQ(num_read, 12);
}

}  // namespace
}  // namespace accel::testing::dispatched_loader_laws
