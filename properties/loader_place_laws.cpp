// The place of a loader after breaks, skips, errors and changes of the epoch. A wrong place is silent: the run
// continues and reads some samples twice and others never.
#include "properties/gen/resumed_loaders.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::loader_place_laws {
namespace {

using namespace resumed_loaders;

TEST(PlaceTest, AfterABreakTheStateIsThePlaceWhereTheLoopEnded) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    set_seed(1);
    auto whole = shuffled_loader(rank), broken = whole;
    const auto at_start = whole.state_dict();
    const auto expected = read_all(whole);
    auto fresh = shuffled_loader(rank);
    fresh.load_state_dict(at_start);
    const auto head = read_all(fresh, 3);
    auto resumed = shuffled_loader(rank);
    resumed.load_state_dict(fresh.state_dict());
    auto seen = head;
    for (auto& batch : read_all(resumed)) seen.push_back(batch);
    EXPECT_EQ(seen, expected);
    // A change of the epoch discards the place within the old epoch.
    fresh.set_epoch(5);
    EXPECT_EQ(fresh.state_dict().at("epoch"), Value(5));
    EXPECT_TRUE(fresh.state_dict().at("pass").is_null()) << "the new epoch has no place yet";
  });
}

// Skipping and loading both move the place. If one replaced the other instead of adding to it, samples would
// repeat.
TEST(PlaceTest, SkippingAfterALoadCountsFromTheLoadedPlace) {
  for (const auto source : {Source::kShuffled, Source::kStream, Source::kParts}) {
    for (const bool dispatch : {false, true}) {
      for (const int workers : {0, 3}) {
        const Case c{.source = source, .ranks = 2, .workers = workers, .epochs = 1, .length = 24, .dispatch = dispatch};
        const auto read = [&](std::int64_t head, std::int64_t skip) {
          return collect_ranks(Backend::kSim, c.ranks, [&](RankContext& rank) {
            Accelerator accelerator({.dataloader_config = {.dispatch_batches = c.dispatch}}, rank);
            set_seed(9);
            const auto run = [&](auto dataset) {
              DataLoader plain(
                  std::move(dataset),
                  {.batch_size = c.batch_size, .shuffle = source == Source::kShuffled, .num_workers = c.workers});
              auto loader = accelerator.prepare(plain);
              std::vector<std::vector<std::int64_t>> seen;
              if (head > 0) {
                seen = read_all(loader, head);
                // Loading the loader's own state makes the next pass a continuation.
                loader.load_state_dict(loader.state_dict());
              }
              auto rest = skip_first_batches(loader, skip);
              for (auto& batch : read_all(rest)) seen.push_back(batch);
              return seen;
            };
            if (source == Source::kShuffled) return run(NoisyDataset{.length = c.length});
            if (source == Source::kStream) return run(noisy(NumberStream{.length = c.length}));
            return run(noisy(parts_of(c)));
          });
        };
        const auto whole = read(0, 0);
        // (0, 100) skips beyond the end, which must give an empty pass and no error.
        for (const auto& [head, skip] : {std::pair{0, 2}, {2, 0}, {1, 2}, {0, 100}}) {
          const auto seen = read(head, skip);
          for (int rank = 0; rank < c.ranks; ++rank) {
            auto expected = whole[rank];
            const auto begin = std::min<std::ptrdiff_t>(head, static_cast<std::ptrdiff_t>(expected.size()));
            expected.erase(expected.begin() + begin,
                           expected.begin() +
                               std::min<std::ptrdiff_t>(begin + skip, static_cast<std::ptrdiff_t>(expected.size())));
            EXPECT_EQ(seen[rank], expected)
                << describe(c) << ", " << head << " read, " << skip << " skipped, rank " << rank;
          }
        }
      }
    }
  }
}

// The loader draws its order before it reads. A failure in between must not consume the place or the order.
TEST(PlaceTest, AFirstBatchThatCannotBeReadDoesNotLoseThePlace) {
  struct Flaky {
    std::shared_ptr<bool> fails = std::make_shared<bool>(false);
    [[nodiscard]] static std::int64_t size() { return 12; }
    [[nodiscard]] std::tuple<std::int64_t> get(std::int64_t index) const {
      check_state(!*fails, "the disk is unavailable");
      return {index};
    }
  };
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    Flaky dataset;
    auto loader = Accelerator({}, rank).prepare(DataLoader(dataset, {.batch_size = 2, .shuffle = true}));
    const auto head = read_all(loader, 2);
    const auto state = loader.state_dict();
    // The default generator is restored too, because the second attempt draws from it again.
    const auto random = rank.generator.get_state();
    loader.load_state_dict(state);
    const auto expected = read_all(loader);
    loader.load_state_dict(state);
    rank.generator.set_state(random);
    *dataset.fails = true;
    EXPECT_THROW(read_all(loader), StateError);
    EXPECT_EQ(loader.state_dict(), state);
    *dataset.fails = false;
    EXPECT_EQ(read_all(loader), expected);
  });
}

// Three parts on two ranks: one rank has two parts, the other has one. Skipping counts steps of all ranks.
TEST(PlaceTest, SkippingIsAlikeOnRanksThatHaveDifferentNumbersOfParts) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto read = [&](std::int64_t skip) {
      return collect_ranks(backend, 2, [&](RankContext& rank) {
        Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
        const auto parts = noisy(Parts::of({4, 4, 4}));
        auto loader =
            skip_first_batches(accelerator.prepare(DataLoader(parts, {.batch_size = 2, .num_workers = 2})), skip);
        std::vector<std::int64_t> sizes;
        for (auto& batch : loader) sizes.push_back(accelerator.gather_for_metrics(std::get<0>(batch)).size(0));
        return sizes;
      });
    };
    const auto whole = read(0), rest = read(1);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(rest[rank], std::vector<std::int64_t>(whole[rank].begin() + 1, whole[rank].end()));
  }
}

// Training loops call set_epoch at the start of each epoch. After a resume that call must not restart the epoch.
TEST(PlaceTest, SetEpochDiscardsTheLoadedPlaceUnlessTheEpochIsTheSame) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    auto loader = Accelerator({}, rank).prepare(DataLoader(noisy(NumberStream{.length = 10}), {.batch_size = 2}));
    read_all(loader, 2);
    const auto state = loader.state_dict();
    loader.load_state_dict(state);
    loader.set_epoch(loader.iteration());
    EXPECT_EQ(read_all(loader).size(), 3U);
    loader.load_state_dict(state);
    loader.set_epoch(4);
    EXPECT_EQ(read_all(loader).size(), 5U);
    EXPECT_THROW(loader.set_epoch(-1), ArgumentError);
  });
}

// prepare() makes a new loader with another sharding, so a place counted in plain batches has no meaning there.
TEST(PlaceTest, PreparingAPlainLoaderThatHasAPlaceIsAnError) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    DataLoader plain(NoisyDataset{.length = 8}, {.batch_size = 2});
    EXPECT_THROW(Accelerator({}, rank).prepare(skip_first_batches(plain, 1)), StateError);
    read_all(plain, 1);
    plain.load_state_dict(plain.state_dict());
    EXPECT_THROW(Accelerator({}, rank).prepare(plain), StateError);
  });
}

// A sampler has one position. Two interleaved passes would each get half of the samples.
TEST(PlaceTest, LoadersThatShareASamplerAreNotReadInsideOneAnother) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    DataLoader plain(NoisyDataset{.length = 8}, {.batch_sampler = std::make_shared<RandomBatches>(8)});
    auto outer = Accelerator({}, rank).prepare(plain), inner = Accelerator({}, rank).prepare(plain);
    for ([[maybe_unused]] auto& batch : outer) EXPECT_THROW(read_all(inner), StateError);
    EXPECT_GT(read_all(inner).size(), 0U);
  });
}

TEST(PlaceTest, AnErrorOfSetEpochReachesEveryRank) {
  struct Refusing : Parts {
    int rank = 0;
    void set_epoch(std::int64_t epoch) const {
      check_state(epoch == 0 || rank != 0, "the files of epoch {} are unavailable", epoch);
    }
    [[nodiscard]] Refusing shard(std::int64_t num_shards, std::int64_t index) const {
      return {Parts::shard(num_shards, index), rank};
    }
  };
  // Gloo runs here as well, because a rank that is not reached waits on a real socket.
  for (const bool dispatch : {false, true}) {
    run_ranks(Backend::kGlooThreads, 2, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch}}, rank);
      auto loader = accelerator.prepare(DataLoader(noisy(Refusing{Parts::of({4, 4}), rank.rank}), {.batch_size = 2}));
      read_all(loader);
      EXPECT_THROW(read_all(loader), Error) << "dispatch " << dispatch;
    });
  }
}

// The outer pass has already promised its number of steps, so join_uneven_inputs may only affect passes that start
// in it.
TEST(PlaceTest, AChangeOfEvenBatchesAppliesFromTheNextPass) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto train = accelerator.prepare(DataLoader(TensorDataset(at::arange(3)), {.batch_size = 1}));
    std::int64_t steps = 0, inner_steps = 0;
    auto inner = accelerator.prepare(DataLoader(TensorDataset(at::arange(3)), {.batch_size = 1}));
    for ([[maybe_unused]] auto& batch : train) {
      ++steps;
      accelerator.join_uneven_inputs({}, {.even_batches = false}, [&] {
        for ([[maybe_unused]] auto& other : inner) ++inner_steps;
      });
    }
    EXPECT_EQ(steps, 2);
    // Three samples on two ranks without even_batches: two steps on rank 0, one on rank 1, in each of two outer
    // steps.
    EXPECT_EQ(inner_steps, rank.rank == 0 ? 4 : 2);
    EXPECT_EQ(inner.size(), 2);
    EXPECT_EQ(train.size(), 2);
  });
}

}  // namespace
}  // namespace accel::testing::loader_place_laws
