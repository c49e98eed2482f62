// Ranks that read separately share one order, whatever draws it.
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::shared_order_laws {
namespace {

// A stream that shuffles with its own generator. Every rank must read the same order, because it takes its shard of
// it.
struct ShuffledStream {
  at::Generator generator;
  at::Tensor order;
  std::int64_t place = 0;
  void reset() {
    order = at::randperm(12, generator, at::kLong);
    place = 0;
  }
  std::optional<std::int64_t> next() {
    return place < 12 ? std::optional(order[place++].item<std::int64_t>()) : std::nullopt;
  }
};

TEST(IterableShardTest, AStreamsGeneratorIsSeededByTheEpochOnEveryRank) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      DataLoader plain(ShuffledStream{.generator = make_generator(static_cast<std::uint64_t>(100 + rank.rank))},
                       {.batch_size = 2});
      auto loader = accelerator.prepare(plain);
      for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
        std::vector<at::Tensor> read;
        for (auto& ids : loader) read.push_back(accelerator.gather_for_metrics(ids));
        // accelerate/data_loader.py, IterableDatasetShard.__iter__, seeds the dataset's generator with the epoch.
        EXPECT_TRUE(at::cat(read).equal(at::randperm(12, make_generator(epoch), at::kLong))) << "epoch " << epoch;
      }
    });
  }
}

// A stream that handles epochs itself is not seeded, so the ranks must get the state of rank 0's generator.
struct StreamOfEpochs : ShuffledStream {
  void set_epoch(std::int64_t) {}
};

TEST(IterableShardTest, AStreamThatHandlesEpochsReadsTheOrderOfRankZero) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      const auto seed = static_cast<std::uint64_t>(100 + rank.rank);
      auto loader =
          accelerator.prepare(DataLoader(StreamOfEpochs{{.generator = make_generator(seed)}}, {.batch_size = 2}));
      const auto of_rank_zero = make_generator(100);
      for (int epoch = 0; epoch < 2; ++epoch) {
        std::vector<at::Tensor> read;
        for (auto& ids : loader) read.push_back(accelerator.gather_for_metrics(ids));
        EXPECT_TRUE(at::cat(read).equal(at::randperm(12, of_rank_zero, at::kLong))) << "epoch " << epoch;
      }
    });
  }
}

// Sharding a DistributedSampler again would give each rank a quarter of the data. Python does so silently.
TEST(ShardedSamplerTest, PrepareRejectsASamplerThatIsAlreadySharded) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    const auto sampler =
        std::make_shared<DistributedSampler>(8, DistributedSampler::Options{.num_replicas = 2, .rank = rank.rank});
    EXPECT_THROW(accelerator.prepare(DataLoader(TensorDataset(at::arange(8)), {.sampler = sampler})), ArgumentError);
  });
}

std::vector<std::int64_t> full_order(Sampler& sampler) {
  auto order = sampler.begin_pass();
  // Samplers with replacement draw their order in pieces.
  for (auto more = sampler.continue_pass(); !more.empty(); more = sampler.continue_pass())
    order.insert(order.end(), more.begin(), more.end());
  return order;
}

// Ranks with different seeds read one order of a sampler that draws: that of rank 0.
void expect_one_order(const std::function<std::shared_ptr<Sampler>()>& make_sampler, bool seedable,
                      const std::vector<std::int64_t>& expected) {
  run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.use_seedable_sampler = seedable}}, rank);
    set_seed(static_cast<std::uint64_t>(50 + rank.rank));
    auto loader =
        accelerator.prepare(DataLoader(TensorDataset(at::arange(9)), {.batch_size = 2, .sampler = make_sampler()}));
    std::vector<at::Tensor> read;
    for (auto& [ids] : loader) read.push_back(accelerator.gather_for_metrics(ids));
    EXPECT_TRUE(at::cat(read).equal(at::tensor(expected, at::kLong))) << at::cat(read) << " on rank " << rank.rank;
  });
}

TEST(ShardedSamplerTest, EverySamplerThatDrawsGivesAllRanksOneOrder) {
  const RandomSamplerOptions with_replacement{.replacement = true, .num_samples = 40}, repeated{.num_samples = 22};
  const std::vector<std::function<std::shared_ptr<Sampler>()>> samplers{
      [&] { return std::make_shared<RandomSampler>(9, with_replacement); },
      [&] { return std::make_shared<RandomSampler>(9, repeated); },
      [] {
        return std::make_shared<SubsetRandomSampler>(std::vector<std::int64_t>{1, 3, 5, 7, 8});
      },
      [] {
        return std::make_shared<WeightedRandomSampler>(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9},
                                                       WeightedRandomSampler::Options{.num_samples = 13});
      }};
  // Rank 0 draws the sampler's seed from its generator, which has seed 50.
  const auto seed_of_sampler = static_cast<std::uint64_t>(draw_int64(make_generator(50)));
  for (const auto& make_sampler : samplers) {
    const auto reference = make_sampler();
    reference->set_generator(make_generator(seed_of_sampler));
    expect_one_order(make_sampler, /*seedable=*/false, full_order(*reference));
  }
  for (const auto& options : {with_replacement, repeated}) {
    SeedableRandomSampler reference(9, /*data_seed=*/50, options);
    expect_one_order([&] { return std::make_shared<RandomSampler>(9, options); }, /*seedable=*/true,
                     full_order(reference));
  }
}

}  // namespace
}  // namespace accel::testing::shared_order_laws
