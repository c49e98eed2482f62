// Which rank reads which sample: the plan equals Accelerate's loop and has its properties, and loaders follow the
// plan on every backend.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "properties/gen/accelerate_shards.hpp"
#include "properties/gen/data_sources.hpp"
#include "properties/gen/loader_sizes.hpp"
#include "properties/gen/plan_cases.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "reference/data/samplers/shard_plan.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::sharding_laws {
namespace {

// Returns the samples rank by rank within each step, the order in which a gather returns them.
std::vector<std::int64_t> gathered(const ShardPlan& plan, int num_ranks) {
  std::vector<std::int64_t> stream;
  for (std::int64_t step = 0;; ++step) {
    bool any = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (step >= plan.num_batches(rank)) continue;
      any = true;
      const auto batch = plan.batch(rank, step);
      stream.insert(stream.end(), batch.begin(), batch.end());
    }
    if (!any) return stream;
  }
}

std::vector<std::vector<std::int64_t>> accelerates_batches(const ShardPlanOptions& o, int rank) {
  return accelerate_shards(
      {o.num_samples, o.batch_size, o.num_ranks, rank, o.split_batches, o.even_batches, o.drop_last});
}

// accelerate_shards is a transcription of Accelerate's loop; plan_shards is a closed form.
TEST(ShardingLaws, PlanEqualsAcceleratesLoop) {
  expect_property(5000, [] {
    const auto one = *shard_plan_case();
    const auto& o = one.options;
    RC_ASSERT(plan_shards(o).indices(one.rank) == accelerates_batches(o, one.rank));
  });
}

TEST(ShardingLaws, EvenStreamIsTheOrderThenItsStartAgain) {
  expect_property(2000, [] {
    auto options = (*shard_plan_case()).options;
    options.even_batches = true;
    options.drop_last = false;
    RC_PRE(options.num_ranks > 1 && options.num_samples > 0);
    const auto plan = plan_shards(options);
    // The stream must be 0, 1, ..., N-1, 0, 1, ... up to a full step: padding in any other place breaks
    // gather_for_metrics.
    const auto stream = gathered(plan, options.num_ranks);
    const auto total = plan.total_batch_size();
    RC_ASSERT(static_cast<std::int64_t>(stream.size()) == (options.num_samples + total - 1) / total * total);
    for (std::size_t place = 0; place < stream.size(); ++place)
      RC_ASSERT(stream[place] == static_cast<std::int64_t>(place) % options.num_samples);
    RC_ASSERT(plan.num_duplicates() == static_cast<std::int64_t>(stream.size()) - options.num_samples);
  });
}

// Without filling up, every sample must occur exactly once.
TEST(ShardingLaws, UnevenShardsPartitionTheSamples) {
  expect_property(2000, [] {
    auto options = (*shard_plan_case()).options;
    options.even_batches = false;
    options.drop_last = false;
    auto stream = gathered(plan_shards(options), options.num_ranks);
    std::sort(stream.begin(), stream.end());
    std::vector<std::int64_t> all(options.num_samples);
    std::iota(all.begin(), all.end(), 0);
    RC_ASSERT(stream == all);
  });
}

// Dropping more than the incomplete step would lose data in every epoch.
TEST(ShardingLaws, DropLastLosesLessThanOneStepAndRepeatsNothing) {
  expect_property(2000, [] {
    auto options = (*shard_plan_case()).options;
    options.drop_last = true;
    const auto plan = plan_shards(options);
    const auto stream = gathered(plan, options.num_ranks);
    for (std::size_t place = 0; place < stream.size(); ++place)
      RC_ASSERT(stream[place] == static_cast<std::int64_t>(place));
    RC_ASSERT(options.num_samples - static_cast<std::int64_t>(stream.size()) < plan.total_batch_size());
  });
}

TEST(ShardingLaws, RemainderCutsExactlyTheDuplicates) {
  expect_property(2000, [] {
    auto options = (*shard_plan_case()).options;
    options.even_batches = true;
    options.drop_last = false;
    RC_PRE(options.num_ranks > 1 && options.num_samples > 0);
    const auto plan = plan_shards(options);
    const auto last_step = plan.remainder() == 0 ? plan.total_batch_size() : plan.remainder();
    // gather_for_metrics keeps `remainder` samples of the last step. Together with the full steps that is every
    // sample once.
    RC_ASSERT((plan.num_batches(0) - 1) * plan.total_batch_size() + last_step == options.num_samples);
  });
}

// --- the loaders, on both backends ----------------------------------------------------------------------------------

struct CountedEpoch {
  std::int64_t length_before = 0, length_after = 0, num_batches = 0;
};

// Returns what the loaders of all ranks report, and what they yield.
std::vector<CountedEpoch> count_epoch(const ShardPlanOptions& o) {
  return collect_ranks(Backend::kSim, o.num_ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.split_batches = o.split_batches, .even_batches = o.even_batches}},
                            rank);
    auto loader = accelerator.prepare(
        DataLoader(TensorDataset(at::arange(o.num_samples)), {.batch_size = o.batch_size, .drop_last = o.drop_last}));
    CountedEpoch epoch{.length_before = loader.size()};
    for ([[maybe_unused]] auto& batch : loader) ++epoch.num_batches;
    epoch.length_after = loader.size();
    return epoch;
  });
}

// Progress bars and schedules use the length before any batch is read. Accelerate reports a wrong length for some
// options, so the reference is what its loop yields.
TEST(ShardingLaws, LengthIsTheNumberOfBatches) {
  expect_property(300, [] {
    const auto options = (*shard_plan_case()).options;
    const auto epochs = count_epoch(options);
    const auto plan = plan_shards(options);
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      const auto expected = static_cast<std::int64_t>(accelerates_batches(options, rank).size());
      RC_ASSERT(plan.num_batches(rank) == expected);
      RC_ASSERT(epochs[rank].num_batches == expected);
      RC_ASSERT(epochs[rank].length_before == expected);
      RC_ASSERT(epochs[rank].length_after == expected);
    }
  });
}

// What one rank read in an epoch.
struct EpochOfRank {
  std::vector<std::vector<std::int64_t>> batches;
  std::vector<bool> ends;
  std::vector<std::int64_t> metrics;
};

// The options of a loader, prepared on some ranks.
struct LoaderCase {
  std::int64_t num_samples = 1, batch_size = 1;
  int num_ranks = 2;
  bool shuffle = false, drop_last = false, split = false, seedable = false;
  int num_workers = 0;
};

std::vector<EpochOfRank> read_epochs(Backend backend, const LoaderCase& one, int epochs) {
  auto all = collect_ranks(backend, one.num_ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.split_batches = one.split, .use_seedable_sampler = one.seedable}},
                            rank);
    set_seed(static_cast<std::uint64_t>(5 + rank.rank));  // ranks with different seeds must still agree
    DataLoader loader(TensorDataset(at::arange(one.num_samples)), {.batch_size = one.batch_size,
                                                                   .shuffle = one.shuffle,
                                                                   .drop_last = one.drop_last,
                                                                   .num_workers = one.num_workers});
    auto batches = accelerator.prepare(loader);
    std::vector<EpochOfRank> read(epochs);
    for (auto& epoch : read) {
      for (auto& [ids] : batches) {
        epoch.batches.push_back(ids_of(ids));
        epoch.ends.push_back(accelerator.gradient_state().end_of_dataloader());
        const auto metric = ids_of(accelerator.gather_for_metrics(ids));
        epoch.metrics.insert(epoch.metrics.end(), metric.begin(), metric.end());
      }
    }
    return read;
  });
  std::vector<EpochOfRank> flat;  // by rank, then by epoch
  for (auto& rank : all) flat.insert(flat.end(), rank.begin(), rank.end());
  return flat;
}

// The laws above concern the plan; this one concerns the loaders that follow it.
TEST(ShardingLaws, LoadersAgreeOnBothBackendsAndMetricsSeeEverySampleOnce) {
  expect_property(60, [] {
    LoaderCase one;
    one.num_ranks = pick(2, 6);
    one.split = pick(0, 2) == 1;
    one.batch_size = pick<std::int64_t>(1, 5) * (one.split ? one.num_ranks : 1);
    one.shuffle = pick(0, 2) == 1;
    one.drop_last = one_in(4);
    one.num_samples = pick_length(one.batch_size * (one.split ? 1 : one.num_ranks), one.drop_last);
    one.seedable = pick(0, 2) == 1;
    one.num_workers = pick(0, 3);
    RC_LOG(fmt::format("N {}, batch {}, P {}, shuffle {}, drop_last {}, split {}, seedable {}, workers {}",
                       one.num_samples, one.batch_size, one.num_ranks, one.shuffle, one.drop_last, one.split,
                       one.seedable, one.num_workers));
    constexpr int kEpochs = 2;
    const auto sim = read_epochs(Backend::kSim, one, kEpochs);
    const auto gloo = read_epochs(Backend::kGlooThreads, one, kEpochs);
    RC_ASSERT(sim.size() == gloo.size());
    for (std::size_t place = 0; place < sim.size(); ++place) {
      RC_ASSERT(sim[place].batches == gloo[place].batches);
      RC_ASSERT(sim[place].metrics == gloo[place].metrics);
      // All ranks gather the same metrics, and exactly the last batch has the end flag.
      RC_ASSERT(sim[place].metrics == sim[place % kEpochs].metrics);
      for (std::size_t step = 0; step < sim[place].ends.size(); ++step)
        RC_ASSERT(sim[place].ends[step] == (step + 1 == sim[place].ends.size()));
      auto seen = sim[place].metrics;
      std::sort(seen.begin(), seen.end());
      RC_ASSERT(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
      if (!one.drop_last) RC_ASSERT(static_cast<std::int64_t>(seen.size()) == one.num_samples);
    }
  });
}

}  // namespace
}  // namespace accel::testing::sharding_laws
