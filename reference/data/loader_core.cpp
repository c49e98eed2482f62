#include "reference/data/loader_core.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include "reference/core/errors.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

DataLoaderOptions checked(DataLoaderOptions options) {
  std::vector<std::string> problems;
  if (options.batch_size < 1) problems.push_back(fmt::format("batch_size: expected 1 or more, got {}", options.batch_size));
  if (options.num_workers < 0) problems.push_back(fmt::format("num_workers: expected 0 or more, got {}", options.num_workers));
  if (options.prefetch_factor < 1) problems.push_back(fmt::format("prefetch_factor: expected 1 or more, got {}", options.prefetch_factor));
  if (options.shuffle && options.sampler) problems.emplace_back("shuffle and sampler exclude each other; give one");
  check_argument(problems.empty(), "DataLoader: {}", fmt::join(problems, "; "));
  return options;
}

std::shared_ptr<Sampler> plain_sampler(std::int64_t num_samples, const DataLoaderOptions& options) {
  if (options.sampler) return options.sampler;
  if (options.shuffle) return std::make_shared<RandomSampler>(num_samples, options.generator);
  return std::make_shared<SequentialSampler>(num_samples);
}

// Without a data_seed the order follows rank 0's seed: ranks that were seeded apart (device_specific) would shuffle apart,
// and samples would be read twice and never. Accelerate leaves that to the user.
std::int64_t agreed_seed(const ShardOptions& shard) {
  if (shard.config.data_seed) return *shard.config.data_seed;
  auto seed = at::full({1}, static_cast<std::int64_t>(default_generator().current_seed()), at::kLong).to(shard.context->device);
  shard.context->world.broadcast(seed, /*root=*/0).wait();
  return seed.item<std::int64_t>();
}

std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard) {
  const auto* random = dynamic_cast<const RandomSampler*>(plain.get());
  if (random == nullptr || dynamic_cast<const SeedableRandomSampler*>(random) != nullptr) return plain;
  if (shard.config.use_seedable_sampler) {
    return std::make_shared<SeedableRandomSampler>(random->size(), agreed_seed(shard), random->generator());
  }
  if (shard.context->world_size == 1) return plain;
  auto sampler = std::make_shared<RandomSampler>(*random);
  if (!sampler->generator()) {
    sampler->set_generator(make_generator(static_cast<std::uint64_t>(draw_int64(default_generator()))));
  }
  return sampler;
}

std::optional<at::Generator> generator_to_synchronize(const Sampler& sampler, const ShardOptions& shard) {
  if (shard.context->world_size == 1 || shard.config.use_seedable_sampler) return std::nullopt;
  const auto* random = dynamic_cast<const RandomSampler*>(&sampler);
  return random == nullptr ? std::nullopt : random->generator();
}

}  // namespace

LoaderCore::LoaderCore(std::int64_t num_samples, DataLoaderOptions options)
    : num_samples_(num_samples), options_(checked(std::move(options))), sampler_(plain_sampler(num_samples, options_)),
      batches_(sampler_, {.batch_size = options_.batch_size, .drop_last = options_.drop_last}, /*rank=*/0) {}

LoaderCore::LoaderCore(const LoaderCore& plain, ShardOptions shard)
    : num_samples_(plain.num_samples_), options_(plain.options_), shard_(std::move(shard)),
      sampler_(sampler_of_rank(plain.sampler_, shard_)), synchronized_generator_(generator_to_synchronize(*sampler_, shard_)),
      batches_(sampler_,
               {.batch_size = options_.batch_size, .num_ranks = shard_.context->world_size,
                .split_batches = shard_.config.split_batches, .even_batches = shard_.config.even_batches,
                .drop_last = options_.drop_last},
               shard_.context->rank) {}

c10::Device LoaderCore::device() const { return shard_.context->device; }

bool LoaderCore::moves_batches() const {
  return is_prepared() && shard_.put_on_device && !shard_.context->device.is_cpu();
}

void LoaderCore::synchronize_rng() {
  for (const auto& type : shard_.rng_types) {
    if (type != "generator") {
      synchronize_rng_state(*shard_.context, type);
    } else if (synchronized_generator_) {
      synchronize_generator(*shard_.context, *synchronized_generator_);
    }
  }
}

LoaderCore::Pass::Pass(LoaderCore& core) : core_(core) {
  if (core.is_prepared()) {
    core.synchronize_rng();
    active_.remainder = core.options_.drop_last ? -1 : core.plan().remainder();
    core.shard_.context->gradient_state.add(&active_);
    core.sampler_->set_epoch(core.iteration_);
  }
  core.batches_.begin_pass();
  base_seed_ = draw_int64(core.options_.generator ? *core.options_.generator : default_generator());
}

LoaderCore::Pass::~Pass() {
  if (core_.is_prepared()) core_.shard_.context->gradient_state.remove(&active_);
}

void LoaderCore::Pass::finish(bool any_batch) {
  if (core_.is_prepared()) core_.shard_.context->gradient_state.remove(&active_);
  if (any_batch) ++core_.iteration_;
}

}  // namespace accel
