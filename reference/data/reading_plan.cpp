// Decides who reads what, and prepares the sampler for it. Deciding is separate from reading so that tests can
// compare the decisions with Accelerate's without a dataset.
#include "reference/data/reading_plan.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/data/samplers/batch_sampler_shard.hpp"
#include "reference/data/samplers/sampler_shard.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

constexpr double kLongestTimeout = 1e9;  // in seconds: 31 years; longer ones overflow the clock

std::vector<std::string> problems_of(const DataSource& source, const DataLoaderOptions& options) {
  std::vector<std::string> problems;
  if (options.batch_size < 1)
    problems.push_back(fmt::format("batch_size: expected 1 or more, got {}", options.batch_size));
  if (options.num_workers < 0)
    problems.push_back(fmt::format("num_workers: expected 0 or more, got {}", options.num_workers));
  if (options.prefetch_factor < 1)
    problems.push_back(fmt::format("prefetch_factor: expected 1 or more, got {}", options.prefetch_factor));
  if (!(options.timeout >= 0 && options.timeout <= kLongestTimeout))
    problems.push_back(fmt::format("timeout: expected 0 to {} s, got {}", kLongestTimeout, options.timeout));
  if (options.num_workers == 0 && options.timeout > 0)
    problems.emplace_back("timeout: the rank's thread reads, because num_workers is 0; omit it, or set num_workers");
  if (options.num_workers == 0 && options.persistent_workers)
    problems.emplace_back(
        "persistent_workers: there are no workers to keep, because num_workers is 0; set num_workers");
  if (source.size.value_or(0) < 0)
    problems.push_back(fmt::format("dataset: expected a size of 0 or more, got {}", *source.size));
  if (options.shuffle && options.sampler)
    problems.emplace_back("shuffle and sampler exclude each other; set only one of them");
  if (options.batch_sampler && (options.batch_size != 1 || options.shuffle || options.drop_last || options.sampler)) {
    problems.emplace_back(
        "batch_sampler excludes batch_size, shuffle, drop_last and sampler; leave these at their defaults");
  }
  if (source.is_stream && (options.shuffle || options.sampler || options.batch_sampler)) {
    problems.emplace_back(
        "an iterable dataset determines its own order; shuffle, sampler and batch_sampler require a map-style dataset");
  }
  return problems;
}

ShardPlanOptions cut_of_one_rank(const DataSource& source, const DataLoaderOptions& options) {
  return {.num_samples = source.size.value_or(0), .batch_size = options.batch_size, .drop_last = options.drop_last};
}

ShardPlanOptions cut_of_all_ranks(const DataSource& source, const DataLoaderOptions& options,
                                  const ShardOptions& shard) {
  auto cut = configured(cut_of_one_rank(source, options), shard.config, source.is_stream);
  cut.num_ranks = shard.data_parallel.size;
  return cut;
}

// Checked on every rank, whoever reads, so that all ranks throw alike.
void check_cut(const ShardPlanOptions& cut, const DataLoaderOptions& options, const ShardOptions& shard) {
  check_argument(!shard.config.is_elastic() || !options.batch_sampler,
                 "prepare: order: elastic does not support batch_sampler, because it divides batches itself; set "
                 "batch_size instead");
  if (options.batch_sampler) {
    BatchSamplerShard::check(*options.batch_sampler, {.num_ranks = cut.num_ranks, .split_batches = cut.split_batches});
  } else {
    plan_shards(cut);
  }
}

// Otherwise every rank reads the complete stream and keeps its share. An elastic order must be the same for any
// number of ranks, so it never depends on parts.
bool has_parts_for_all(const DataSource& source, const ShardOptions& shard) {
  return shard.data_parallel.size > 1 && source.num_shards >= shard.data_parallel.size && !shard.config.is_elastic();
}

// Without a data_seed all ranks use rank 0's seed. Ranks that were seeded differently (device_specific) would
// shuffle differently, so some samples would be read twice and others never. Accelerate does not protect against
// this.
std::int64_t synchronized_seed(const ShardOptions& shard) {
  if (shard.config.data_seed) return *shard.config.data_seed;
  auto seed = at::full({1}, static_cast<std::int64_t>(default_generator().current_seed()), at::kLong);
  shard.context->world.broadcast(seed, /*root=*/0).wait();
  return seed.item<std::int64_t>();
}

bool is_seedable(const Sampler& sampler) { return dynamic_cast<const SeedableRandomSampler*>(&sampler) != nullptr; }

// Source: accelerate/data_loader.py, prepare_data_loader: a random sampler without a generator gets one that the
// ranks can synchronize.
void ensure_generator(Sampler& sampler) {
  if (is_seedable(sampler) || !sampler.has_generator() || sampler.generator()) return;
  sampler.set_generator(make_generator(static_cast<std::uint64_t>(draw_int64(default_generator()))));
}

// A seedable sampler needs no synchronization: its seed is already equal on all ranks. Source:
// accelerate/data_loader.py, DataLoaderShard.synchronized_generator.
std::optional<at::Generator> generator_to_synchronize(const DataSource& source, const DataLoaderOptions& options,
                                                      const Sampler* sampler, const ShardOptions& shard) {
  if (shard.context->world_size == 1) return std::nullopt;
  if (source.is_stream) return source.generator;
  if (options.batch_sampler) return options.batch_sampler->generator();
  return is_seedable(*sampler) ? std::nullopt : sampler->generator();
}

}  // namespace

ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options) {
  const auto problems = problems_of(source, options);
  check_argument(problems.empty(), "DataLoader: {}", listed(problems, "; "));
  return {.cut = cut_of_one_rank(source, options)};
}

// The cut is checked for all ranks first and then replaced by that of a single rank where the reader does not
// divide: with dispatching rank 0 reads everything, and with separate parts each rank reads its parts completely.
ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard) {
  ReadingPlan plan{.num_ranks = shard.data_parallel.size, .cut = cut_of_all_ranks(source, options, shard)};
  check_cut(plan.cut, options, shard);
  plan.is_dispatched = shard.config.dispatch_batches.value_or(shard.put_on_device && source.is_stream);
  check_argument(
      !plan.is_dispatched || shard.put_on_device,
      "prepare: dispatch_batches: true requires device_placement: true, since batches are sent from device to "
      "device");
  plan.reads_own_parts = !plan.is_dispatched && has_parts_for_all(source, shard);
  if (!plan.is_dispatched && !plan.reads_own_parts) return plan;
  const auto total_batch_size = plan.reads_own_parts ? plan_shards(plan.cut).total_batch_size() : 0;
  plan.cut = cut_of_one_rank(source, options);
  if (plan.reads_own_parts) plan.cut.batch_size = total_batch_size / plan.num_ranks;
  return plan;
}

int ReadingPlan::num_readers(const DataSource& source, std::int64_t num_workers, int rank) const {
  if (!source.is_stream || num_workers == 0) return static_cast<int>(num_workers);
  if (source.generator) return 1;  // all parts share the generator, so their order of reading must be fixed
  const bool every_rank_reads_all = !is_dispatched && !reads_own_parts && num_ranks > 1;
  if (every_rank_reads_all) return 1;
  const auto num_parts = reads_own_parts
                             ? source.num_shards / num_ranks + (rank < source.num_shards % num_ranks ? 1 : 0)
                             : source.num_shards;
  return static_cast<int>(std::clamp<std::int64_t>(num_parts, 1, num_workers));
}

std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options) {
  if (source.is_stream || options.batch_sampler) return nullptr;
  if (options.sampler) return options.sampler;
  if (options.shuffle)
    return std::make_shared<RandomSampler>(*source.size, RandomSamplerOptions{.generator = options.generator});
  return std::make_shared<SequentialSampler>(*source.size);
}

std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard,
                                         bool is_dispatched) {
  check_argument(
      !plain->is_sharded() || shard.data_parallel.size == 1,
      "prepare: the loader's sampler is already sharded by rank; pass prepare a loader with an unsharded sampler, "
      "or do not prepare this loader");
  const auto& seed = shard.context->sample_seed;
  if (seed && plain->has_generator() && !plain->generator()) plain->set_generator(make_generator(*seed));
  const auto* random = dynamic_cast<const RandomSampler*>(plain.get());
  if (random != nullptr && !is_seedable(*plain) && shard.config.seeds_order()) {
    return std::make_shared<SeedableRandomSampler>(
        random->length(), synchronized_seed(shard),
        RandomSamplerOptions{
            .replacement = random->replacement(), .num_samples = random->size(), .generator = random->generator()});
  }
  // An elastic order must be drawn identically on any number of ranks, including one.
  if (shard.config.is_elastic() || (shard.context->world_size > 1 && !is_dispatched)) ensure_generator(*plain);
  return plain;
}

void synchronize_rng(const DataSource& source, const DataLoaderOptions& options, Sampler* sampler,
                     const ShardOptions& shard) {
  // A state that was saved on a single rank may have removed the generator.
  if (sampler != nullptr && shard.context->world_size > 1) ensure_generator(*sampler);
  const auto generator = generator_to_synchronize(source, options, sampler, shard);
  for (const auto& type : shard.rng_types) {
    if (type != "generator") {
      synchronize_rng_state(*shard.context, type);
    } else if (generator) {
      synchronize_generator(*shard.context, *generator);
    }
  }
}

std::unique_ptr<StepSource> steps_of_rank(const std::shared_ptr<Sampler>& sampler, const DataLoaderOptions& options,
                                          const ShardPlanOptions& cut, int rank) {
  if (sampler) return std::make_unique<SamplerShard>(sampler, cut, rank);
  if (!options.batch_sampler) return nullptr;
  return std::make_unique<BatchSamplerShard>(
      options.batch_sampler,
      BatchSamplerShard::Options{
          .num_ranks = cut.num_ranks, .split_batches = cut.split_batches, .even_batches = cut.even_batches},
      rank);
}

}  // namespace accel
