// Compares real loaders with the shard plan in every mode, and verifies that metrics hold every sample once. The
// plan is a closed form and the loaders are a state machine, so a bug in one of them is unlikely to be in the other
// too.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <ranges>

#include "properties/gen/data_sources.hpp"
#include "properties/gen/plan_cases.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/data/samplers/batch_sampler_shard.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/programs/experiments/data_plan.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::loader_laws {
namespace {

using programs::PlanEpoch;
using programs::PlanRequest;

void expect_equal(const std::vector<PlanEpoch>& a, const std::vector<PlanEpoch>& b) {
  RC_ASSERT(a.size() == b.size());
  for (std::size_t epoch = 0; epoch < a.size(); ++epoch) {
    RC_ASSERT(a[epoch].ranks == b[epoch].ranks);
    RC_ASSERT(a[epoch].end_of_dataloader == b[epoch].end_of_dataloader);
    RC_ASSERT(a[epoch].gathered_for_metrics == b[epoch].gathered_for_metrics);
  }
}

TEST(LoaderLaws, TheLoadersAnswerIsTheShardPlans) {
  expect_property(600, [] {
    const auto request = *plan_request(8);
    RC_LOG(describe(request));
    expect_equal(programs::plan_by_loaders(request), programs::plan_by_shards(request));
  });
}

TEST(LoaderLaws, TheShardPlanEqualsTheLoadersBeyondTheirLimitOfRanks) {
  expect_property(4, [] {
    // `sim-run plan` runs no loaders above kMaxPlanLoaders ranks. Here they run anyway, in four cases because it is
    // slow.
    auto request = *plan_request(3);
    const auto scale = programs::kMaxPlanLoaders / request.ranks + 1;
    request.ranks *= scale;
    if (request.split_batches) request.batch_size *= scale;
    request.length *= scale;
    RC_LOG(describe(request));
    expect_equal(programs::plan_by_loaders(request), programs::plan_by_shards(request));
  });
}

// In every mode the samples gathered over an epoch are the epoch's order, every sample once, except for those that
// were dropped or skipped.
TEST(LoaderLaws, MetricsHoldTheSourceOnceAndInOrder) {
  expect_property(1000, [] {
    auto request = *plan_request(8);
    request.even_batches = true;
    request.shuffle = false;
    request.epochs = std::max(request.epochs, 1);
    RC_LOG(describe(request));
    const auto total = request.split_batches ? request.batch_size : request.batch_size * request.ranks;
    const auto epochs = programs::answer_plan(request);
    for (std::size_t epoch = 0; epoch < epochs.size(); ++epoch) {
      // skip_batches applies to the first epoch only, as skip_first_batches does.
      const auto begin = std::min(request.length, epoch == 0 ? request.skip_batches * total : 0);
      const auto end = request.drop_last ? request.length / total * total : request.length;
      std::vector<std::int64_t> expected(std::max<std::int64_t>(end - begin, 0)), gathered;
      std::iota(expected.begin(), expected.end(), begin);
      for (const auto& step : *epochs[epoch].gathered_for_metrics)
        gathered.insert(gathered.end(), step.begin(), step.end());
      RC_ASSERT(gathered == expected);
    }
  });
}

template <typename Dataset>
std::pair<std::int64_t, std::int64_t> length_and_count(Accelerator& accelerator, const PlanRequest& request,
                                                       Dataset dataset) {
  DataLoader plain(std::move(dataset),
                   {.batch_size = request.batch_size, .shuffle = request.shuffle, .drop_last = request.drop_last});
  auto loader = skip_first_batches(accelerator.prepare(plain), request.skip_batches);
  // size() must be right before the pass: progress bars and schedules use it.
  const auto length = loader.size();
  std::int64_t count = 0;
  for ([[maybe_unused]] auto& batch : loader) ++count;
  return {length, count};
}

TEST(LoaderLaws, LengthIsTheNumberOfBatchesInEveryMode) {
  expect_property(300, [] {
    const auto request = *plan_request(5);
    RC_LOG(describe(request));
    const auto lengths = collect_ranks(Backend::kSim, request.ranks, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.split_batches = request.split_batches,
                                                     .dispatch_batches = request.dispatch_batches,
                                                     .even_batches = request.even_batches}},
                              rank);
      if (request.iterable)
        return length_and_count(accelerator, request, std::views::iota(std::int64_t{0}, request.length));
      return length_and_count(accelerator, request, TensorDataset(at::arange(request.length)));
    });
    for (const auto& [length, count] : lengths) RC_ASSERT(length == count);
  });
}

// Metrics of a user's struct: tensors and lists of one batch must be cut at the same row.
// --- tensors, lists and a user's struct, on both backends ------------------------------------------------------------

struct NamedIds {
  at::Tensor ids;
  std::vector<std::string> names;
};

}  // namespace
}  // namespace accel::testing::loader_laws

template <>
inline constexpr auto accel::tree_members<accel::testing::loader_laws::NamedIds> =
    std::tuple(&accel::testing::loader_laws::NamedIds::ids, &accel::testing::loader_laws::NamedIds::names);

namespace accel::testing::loader_laws {
namespace {

struct NamedSamples {
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
};

NamedIds collate(const std::vector<std::int64_t>& samples) {
  NamedIds batch{.ids = at::tensor(samples, at::kLong)};
  for (const auto sample : samples) batch.names.push_back(fmt::format("sample {}", sample));
  return batch;
}

struct MetricCase {
  std::int64_t length = 0, batch_size = 1;
  int ranks = 1;
  enum { kDataset, kShortSampler, kVaryingBatches } source = kDataset;
  bool dispatch = false;
};

std::vector<std::string> gathered_names(Backend backend, const MetricCase& one) {
  std::vector<std::string> of_rank_zero;
  run_ranks(backend, one.ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = one.dispatch}}, rank);
    DataLoaderOptions options{.batch_size = one.batch_size};
    if (one.source == MetricCase::kShortSampler) options.sampler = std::make_shared<EveryThird>(one.length);
    if (one.source == MetricCase::kVaryingBatches)
      options = {.batch_sampler = std::make_shared<NumberBatches>(one.length, NumberBatches::Options{})};
    DataLoader loader(NamedSamples{one.length}, options, &collate);
    std::vector<std::string> names;
    for (auto& batch : accelerator.prepare(loader)) {
      std::vector<std::string> of_step;
      if (one.source == MetricCase::kVaryingBatches) {  // tensors of different lengths cannot be gathered; lists can
        of_step = accelerator.gather_for_metrics(batch.names);
      } else {
        const auto all = accelerator.gather_for_metrics(batch);
        of_step = all.names;
        EXPECT_EQ(collate(ids_of(all.ids)).names, of_step);
      }
      names.insert(names.end(), of_step.begin(), of_step.end());
    }
    if (rank.rank == 0) of_rank_zero = names;
  });
  return of_rank_zero;
}

TEST(LoaderLaws, ListsAndTensorsAreTruncatedAtTheSameSample) {
  expect_property(60, [] {
    MetricCase one;
    one.ranks = pick(1, 6);
    one.batch_size = pick<std::int64_t>(1, 4);
    one.length = pick<std::int64_t>(0, 25);
    one.source = pick_from({MetricCase::kDataset, MetricCase::kShortSampler, MetricCase::kVaryingBatches});
    one.dispatch = one.source != MetricCase::kVaryingBatches && (pick(0, 2) == 0);
    RC_LOG(fmt::format("length {}, batch {}, ranks {}, source {}, dispatch {}", one.length, one.batch_size, one.ranks,
                       static_cast<int>(one.source), one.dispatch));
    std::vector<std::string> expected;
    for (std::int64_t sample = 0; sample < one.length; sample += one.source == MetricCase::kShortSampler ? 3 : 1)
      expected.push_back(fmt::format("sample {}", sample));
    RC_ASSERT(gathered_names(Backend::kSim, one) == expected);
    RC_ASSERT(gathered_names(Backend::kGlooThreads, one) == expected);
  });
}

// --- batch samplers against the plan ---------------------------------------------------------------------------------

// A batch sampler takes another path than a dataset with batch_size: its batches come one by one, without a length.
// The result must still be the plan's.
TEST(LoaderLaws, ABatchSamplersShardsAreThePlansShards) {
  expect_property(2000, [] {
    const auto [options, rank] = *shard_plan_case();
    const auto plan = plan_shards(options);
    BatchSamplerShard shard(
        std::make_shared<NumberBatches>(options.num_samples, NumberBatches::Options{.batch_size = options.batch_size,
                                                                                    .drop_last = options.drop_last}),
        {.num_ranks = options.num_ranks, .split_batches = options.split_batches, .even_batches = options.even_batches},
        rank);
    shard.begin_pass();
    std::int64_t place = 0;
    for (; auto step = shard.next(); ++place) {
      RC_ASSERT(place < plan.num_batches(rank));
      RC_ASSERT(step->indices == plan.batch(rank, place));
      // `remainder` is what gather_for_metrics truncates by.
      RC_ASSERT(step->remainder == plan.remainder(place));
    }
    RC_ASSERT(place == plan.num_batches(rank));
    if (shard.size()) RC_ASSERT(*shard.size() == place);
  });
}

}  // namespace
}  // namespace accel::testing::loader_laws
