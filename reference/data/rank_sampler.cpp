#include "reference/data/rank_sampler.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "reference/core/errors.hpp"
#include "reference/core/random.hpp"
#include "reference/data/samplers/batch_sampler_shard.hpp"
#include "reference/data/samplers/sampler_shard.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

// Without a data_seed the order follows rank 0's seed: ranks that were seeded apart (device_specific) would shuffle
// apart, and samples would be read twice and never. Accelerate leaves that to the user.
std::int64_t agreed_seed(const ShardOptions& shard) {
  if (shard.config.data_seed) return *shard.config.data_seed;
  auto seed =
      at::full({1}, static_cast<std::int64_t>(default_generator().current_seed()), at::kLong).to(shard.context->device);
  shard.context->world.broadcast(seed, /*root=*/0).wait();
  return seed.item<std::int64_t>();
}

bool is_seedable(const Sampler& sampler) { return dynamic_cast<const SeedableRandomSampler*>(&sampler) != nullptr; }

// As in Python, a sampler that draws and has no generator is given one, that ranks can agree on.
void give_generator(Sampler& sampler) {
  if (is_seedable(sampler) || !sampler.has_generator() || sampler.generator()) return;
  sampler.set_generator(make_generator(static_cast<std::uint64_t>(draw_int64(default_generator()))));
}

std::optional<at::Generator> generator_to_synchronize(const DataSource& source, const DataLoaderOptions& options,
                                                      const Sampler* sampler, const ShardOptions& shard) {
  if (shard.context->world_size == 1) return std::nullopt;
  if (source.is_stream) return source.generator;
  if (options.batch_sampler) return options.batch_sampler->generator();
  return is_seedable(*sampler) ? std::nullopt : sampler->generator();
}

}  // namespace

std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options) {
  if (source.is_stream || options.batch_sampler) return nullptr;
  if (options.sampler) return options.sampler;
  if (options.shuffle)
    return std::make_shared<RandomSampler>(*source.size, RandomSamplerOptions{.generator = options.generator});
  return std::make_shared<SequentialSampler>(*source.size);
}

std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard,
                                         bool is_dispatched) {
  check_argument(!plain->is_sharded() || shard.data_parallel.size == 1,
                 "prepare: the loader's sampler gives every rank a part already; give prepare a sampler of the whole, "
                 "or leave the loader unprepared");
  const auto* random = dynamic_cast<const RandomSampler*>(plain.get());
  if (random != nullptr && !is_seedable(*plain) && shard.config.seeds_order()) {
    return std::make_shared<SeedableRandomSampler>(
        random->length(), agreed_seed(shard),
        RandomSamplerOptions{
            .replacement = random->replacement(), .num_samples = random->size(), .generator = random->generator()});
  }
  // An elastic order is drawn alike on any number of ranks.
  if (shard.config.is_elastic() || (shard.context->world_size > 1 && !is_dispatched)) give_generator(*plain);
  return plain;
}

void synchronize_rng(const DataSource& source, const DataLoaderOptions& options, Sampler* sampler,
                     const ShardOptions& shard) {
  // The state of one rank that was loaded may have no generator.
  if (sampler != nullptr && shard.context->world_size > 1) give_generator(*sampler);
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
